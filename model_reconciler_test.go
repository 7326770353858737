package warmwatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// shadows is what a reconciler has made: a shadow of each object. They outlive crashes.
type shadows struct {
	t   *testing.T
	rng *rand.Rand

	mu      sync.Mutex
	dead    bool // The process has crashed: what follows did not happen.
	slow    bool
	calls   int
	failed  int
	byKey   map[string]string   // The resourceVersion that the last reconcile has found, by key.
	byUID   map[types.UID]int   // The resourceVersion at which an object was first found, until its deletion was reconciled.
	working map[string]struct{} // Keys that are being reconciled.
	lister  func(string) (*corev1.ConfigMap, error)
}

func newShadows(t *testing.T, seed uint64) *shadows {
	return &shadows{t: t, rng: rand.New(rand.NewPCG(seed, 3)), byKey: map[string]string{}, byUID: map[types.UID]int{}, working: map[string]struct{}{}}
}

// add adds the reconciler to an informer.
func (w *shadows) add(s *SharedIndexInformer, workers int, slow bool) error {
	w.mu.Lock()
	w.dead, w.slow, w.working = false, slow, map[string]struct{}{}
	w.lister = func(key string) (*corev1.ConfigMap, error) {
		obj, exists, err := s.GetStore().GetByKey(key)
		if err != nil || !exists {
			return nil, err
		}
		return obj.(*corev1.ConfigMap), nil
	}
	w.mu.Unlock()
	_, err := s.AddReconciler("shadows", w.reconcile, ReconcilerOptions{
		Workers:     workers,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](10*time.Millisecond, 5*time.Second),
	})
	return err
}

var errModel = errors.New("a reconcile that was to fail")

// reconcile takes its time, and often fails after it has made the shadow.
func (w *shadows) reconcile(ctx context.Context, name cache.ObjectName) error {
	key := name.String()
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, busy := w.working[key]; busy {
		w.t.Errorf("Q6: two workers reconcile %s", key)
	}
	w.working[key] = struct{}{}
	defer delete(w.working, key)
	lister, slow := w.lister, w.slow && w.rng.IntN(3) == 0
	pause := time.Duration(w.rng.IntN(300)) * time.Millisecond
	w.mu.Unlock()
	obj, err := lister(key)
	if slow {
		time.Sleep(pause) // Virtual time.
	}
	w.mu.Lock()
	if w.dead || err != nil {
		return err
	}
	w.calls++
	if obj != nil {
		rv, err := strconv.Atoi(obj.ResourceVersion)
		if err != nil {
			w.t.Error(err)
		}
		if _, found := w.byUID[obj.UID]; !found {
			w.byUID[obj.UID] = rv
		}
	}
	if w.rng.IntN(4) == 0 {
		w.failed++
		return errModel
	}
	for _, deleted := range DeletedObjects(ctx) {
		cm := deleted.(*corev1.ConfigMap)
		if cm.Namespace+"/"+cm.Name != key {
			w.t.Errorf("Q6: the reconcile of %s has the deleted object %s/%s", key, cm.Namespace, cm.Name)
		}
		delete(w.byUID, cm.UID)
	}
	if delete(w.byKey, key); obj != nil {
		w.byKey[key] = obj.ResourceVersion
	}
	return nil
}

// die is called at the crash.
func (w *shadows) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
}

// restart goes on with a file of a version. A lister may have an object before the file has it: its
// deletion need not be known then, but its key is reconciled.
func (w *shadows) restart(rv int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.byUID, func(_ types.UID, since int) bool { return since > rv })
}

func (w *shadows) hurry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slow = false
}

// compare says what is not reconciled (Q6).
func (w *shadows) compare(server map[string]string, uids map[types.UID]bool) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, rv := range w.byUID {
		if !uids[uid] {
			return fmt.Sprintf("Q6: the deletion of %s, which was found at version %d, was not reconciled", uid, rv)
		}
	}
	if !maps.Equal(server, w.byKey) {
		return fmt.Sprintf("Q6: reconciled were %v, the server has %v", w.byKey, server)
	}
	return ""
}
