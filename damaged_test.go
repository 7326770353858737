package warmwatch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/apiserver"
)

// TestDamageThatIsFoundWhileAllIsWrittenAnewIsLogged, once, and so is its repair: that list asks for no other one.
func TestDamageThatIsFoundWhileAllIsWrittenAnewIsLogged(t *testing.T) {
	var mu sync.Mutex // The DB logs, too.
	var lines []string
	logger := funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(args, "record") {
			lines = append(lines, args)
		}
	}, funcr.Options{})
	c, err := Open(t.Context(), testsupport.Path(t), Options{Logger: &logger})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	s, err := c.NewSharedIndexInformer(apiserver.New(apiserver.Options{}), &corev1.ConfigMap{}, InformerOptions{Resource: corev1.SchemeGroupVersion.WithResource("configmaps")})
	if err != nil {
		t.Fatal(err)
	}
	s.progress.RelistBegun(true)
	s.corrupt(errors.New("the first record"))
	s.corrupt(errors.New("the second record"))
	mu.Lock()
	found := slices.Clone(lines)
	mu.Unlock()
	if len(found) != 1 || !strings.Contains(found[0], "the first record") {
		t.Errorf("logged %q, expected the first record", found)
	}
	if whole := (observer{&s.progress, s}).RelistEnded(true, nil); !whole {
		t.Error("it is not whole")
	}
	if due := s.progress.dueRelists(); len(due) != 0 {
		t.Errorf("to be repaired once more: %v", due)
	}
}

// TestAReconcilerOfAnInformerThatCannotBeginLeavesNothing: the bubble does not end while its workqueue has a goroutine.
func TestAReconcilerOfAnInformerThatCannotBeginLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := Open(t.Context(), testsupport.Path(t), Options{Logger: &testsupport.Quiet})
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.NewSharedIndexInformer(apiserver.New(apiserver.Options{}), &corev1.ConfigMap{}, InformerOptions{Resource: corev1.SchemeGroupVersion.WithResource("configmaps")})
		if err != nil {
			t.Fatal(err)
		}
		reconcile := func(context.Context, ReconcileRequest) (ReconcileResult, error) { return ReconcileResult{}, nil }
		if _, err := s.AddReconciler("r", reconcile, ReconcilerOptions{}); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		p, err := s.open()
		if err == nil {
			err = s.openReconcilers(p)
		}
		s.mu.Unlock()
		if err := errors.Join(err, c.db.Close()); err != nil {
			t.Fatal(err)
		}
		s.RunWithContext(t.Context())
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
