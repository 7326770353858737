package controllerruntime_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/controllerruntime"
)

// TestTheFileOfAManagerIsLoggedAboutWhereTheManagerLogs, unless it is told where: here the file is no cache file.
func TestTheFileOfAManagerIsLoggedAboutWhereTheManagerLogs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache.db")
	for _, own := range []bool{false, true} {
		if err := os.WriteFile(path, []byte("noise"), 0o600); err != nil {
			t.Fatal(err)
		}
		var managers, files []string
		into := func(lines *[]string) logr.Logger {
			return funcr.New(func(prefix, args string) { *lines = append(*lines, prefix+" "+args) }, funcr.Options{})
		}
		opening := warmwatch.Options{}
		if own {
			logger := into(&files)
			opening.Logger = &logger
		}
		m, err := controllerruntime.NewManager(shared.Config(), ctrl.Options{
			Logger: into(&managers), Metrics: server.Options{BindAddress: "0"},
		}, path, opening)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		logged := managers
		if own {
			logged = files
		}
		if all := strings.Join(logged, "\n"); !strings.Contains(all, "Set the cache file aside") || !own && !strings.HasPrefix(all, "warmwatch ") {
			t.Errorf("a logger of its own: %v; the manager's log: %q, its own: %q", own, managers, files)
		}
	}
}
