package model_test

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

	"github.com/warmwatch/warmwatch"
)

// shadows is what a reconciler has made: a shadow of each object. They outlive crashes.
type shadows struct {
	t     *testing.T
	rng   *rand.Rand
	epoch string

	mu     sync.Mutex
	calls  int
	failed int
	byKey  map[string]shadow    // What the last reconcile has found, by key.
	byUID  map[types.UID]shadow // What was first found of an object, until its deletion was reconciled.
}

// shadow is an object that a reconciler has found.
type shadow struct {
	rv string
}

// shadower is the reconciler of one process.
type shadower struct {
	*shadows
	life    *life
	dead    bool // The process has crashed: what follows did not happen.
	slow    bool
	working map[string]struct{} // Keys that are being reconciled.
	lister  func(string) (*corev1.ConfigMap, error)
}

func newShadows(t *testing.T, seed uint64) *shadows {
	epoch := "" // Each start reconciles everything.
	if seed%4 < 2 {
		epoch = "always the same"
	}
	return &shadows{t: t, rng: rand.New(rand.NewPCG(seed, 3)), epoch: epoch, byKey: map[string]shadow{}, byUID: map[types.UID]shadow{}}
}

// add adds the reconciler to an informer.
func (w *shadows) add(l *life, workers int, slow bool) (*shadower, error) {
	s := l.informer
	r := &shadower{shadows: w, life: l, slow: slow, working: map[string]struct{}{}}
	r.lister = func(key string) (*corev1.ConfigMap, error) {
		obj, exists, err := s.GetStore().GetByKey(key)
		if err != nil || !exists {
			return nil, err
		}
		return l.configMap(obj), nil
	}
	o := warmwatch.ReconcilerOptions{
		Workers:     workers,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](10*time.Millisecond, 5*time.Second),
	}
	o.Epoch = w.epoch
	if l.m.lossy {
		o.Known = w.known
	}
	_, err := s.AddReconciler("shadows", r.reconcile, o)
	return r, err
}

var errModel = errors.New("a reconcile that was to fail")

// reconcile takes its time, and often fails after it has made the shadow.
func (w *shadower) reconcile(_ context.Context, req warmwatch.ReconcileRequest) (result warmwatch.ReconcileResult, err error) {
	key := req.String()
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, busy := w.working[key]; busy {
		w.t.Errorf("D4: two workers reconcile %s", key)
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
		return result, err
	}
	w.calls++
	if obj != nil {
		found, before := w.byUID[obj.UID]
		if !before {
			found.rv = obj.ResourceVersion
		}
		w.byUID[obj.UID] = found
	}
	if w.rng.IntN(4) == 0 {
		w.failed++
		return result, errModel
	}
	for _, deleted := range req.Deleted {
		cm := w.life.configMap(deleted)
		if cm.Namespace+"/"+cm.Name != key {
			w.t.Errorf("D4: the reconcile of %s has the deleted object %s/%s", key, cm.Namespace, cm.Name)
		}
		delete(w.byUID, cm.UID)
	}
	if delete(w.byKey, key); obj != nil {
		w.byKey[key] = shadow{obj.ResourceVersion}
	}
	return result, nil
}

// known returns the keys of the shadows.
func (w *shadows) known(context.Context) (keys []cache.ObjectName, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for text := range w.byKey {
		key, err := cache.ParseObjectName(text)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// die is called at the crash. Until unlock is called no reconcile returns.
func (w *shadower) die() (unlock func()) {
	w.mu.Lock()
	w.dead = true
	return w.mu.Unlock
}

// restart goes on with a file of a version. A lister may have an object before the file has it: its
// deletion need not be known then, but its key is reconciled.
func (w *shadows) restart(rv int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.byUID, func(_ types.UID, found shadow) bool {
		return w.number(found.rv) > rv
	})
}

// forgetObjects forgets which objects were found, and that their deletions are due.
func (w *shadows) forgetObjects() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.byUID)
}

func (w *shadows) number(resourceVersion string) int {
	n, err := strconv.Atoi(resourceVersion)
	if err != nil {
		w.t.Error(err)
	}
	return n
}

func (w *shadower) hurry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slow = false
}

// compare says what is not reconciled (D4).
func (w *shadows) compare(server map[string]string, uids map[types.UID]bool) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, found := range w.byUID {
		if !uids[uid] {
			return fmt.Sprintf("D4: the deletion of %s, which was found at version %s, was not reconciled", uid, found.rv)
		}
	}
	reconciled := map[string]string{}
	for key, found := range w.byKey {
		reconciled[key] = found.rv
	}
	if !maps.Equal(server, reconciled) {
		return fmt.Sprintf("D4: reconciled were %v, the server has %v", reconciled, server)
	}
	return ""
}
