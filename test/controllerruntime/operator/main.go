// Command operator measures a manager of controller-runtime that is restarted: with its stock
// caches, and with caches that are kept in a file. `make operator` runs it.
//
// Each life of the manager is a process. Its controllers look at every object once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctrl.SetLogger(logr.Discard())
	if len(os.Args) == 3 && os.Args[1] == managerCommand {
		exit(runManager(ctx, os.Args[2]))
	}
	b := &bench{}
	flag.StringVar(&b.binDir, "bin-dir", "", "directory of kube-apiserver and etcd")
	flag.IntVar(&b.percent, "percent", 100, "how many of the objects")
	flag.BoolVar(&b.limits, "limits", false, "also find the least limit of memory that each manager needs: root and a memory cgroup")
	scenario := flag.String("scenario", "manager", "manager: 20,000 Pods, 5,000 ConfigMaps, 5,000 custom resources; cass-operator: the objects of cass-operator#947")
	flag.Parse()
	kinds, ok := scenarios[*scenario]
	if !ok {
		exit(fmt.Errorf("no scenario %q", *scenario))
	}
	b.kinds = kinds(b.percent)
	exit(b.run(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// namespace has all objects.
const namespace = "operator"

// bench is one run.
type bench struct {
	binDir  string
	percent int
	limits  bool
	kinds   []kind

	controlPlane *controlplane.ControlPlane
	dir          string // Of the files.
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.dir, err = os.MkdirTemp("", "operator-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.controlPlane, err = controlplane.Start(ctx, controlplane.Options{BinDir: b.binDir}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.controlPlane.Stop()) }()
	if err := b.fill(ctx); err != nil {
		return err
	}
	if err := b.starts(ctx); err != nil || !b.limits {
		return err
	}
	return b.leastLimits(ctx)
}

// fill creates the objects. The server is restarted then, so that its own heap is that of one
// which serves, not of one that was filled.
func (b *bench) fill(ctx context.Context) error {
	clients, err := workload.NewClients(b.controlPlane.Config())
	if err != nil {
		return err
	}
	if err := clients.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	if err := clients.DefineGadgets(ctx); err != nil {
		return err
	}
	c, err := newClient(b.controlPlane.Config())
	if err != nil {
		return err
	}
	for _, k := range b.kinds {
		fmt.Printf("# %d %s\n", k.Objects, k.Kind)
		err := workload.Parallel(ctx, k.Objects, nil, func(ctx context.Context, i int) error {
			object := k.object(i)
			object.SetNamespace(namespace)
			return c.Create(ctx, object)
		})
		if err != nil {
			return err
		}
	}
	if err := b.controlPlane.RestartAPIServer(ctx); err != nil {
		return err
	}
	for _, k := range b.kinds {
		if err := clients.AwaitWatchCache(ctx, k.resource); err != nil {
			return err
		}
	}
	return nil
}

// file is where the manager keeps its caches.
func (b *bench) file() string { return filepath.Join(b.dir, "cache.db") }
