package warmwatch

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/workqueue"
)

// ReconcilerStatus says how far behind a reconciler is, and what keeps it there.
type ReconcilerStatus struct {
	workqueue.Status
	// Reconciling is the object whose reconcile has been running for the longest time, and
	// ReconcilingSince when it began; empty and zero if none runs. A reconcile that does not return when
	// its ctx is cancelled also keeps Run from returning. It is logged after a minute.
	Reconciling      string
	ReconcilingSince time.Time `json:",omitzero"`
	// Err is that of the reconcile that has failed last, until one of the same object has succeeded.
	Err error
}

// MarshalJSON writes the error as a string, or null if there is none.
func (st ReconcilerStatus) MarshalJSON() ([]byte, error) {
	type fields ReconcilerStatus // Without this method.
	return json.Marshal(struct {
		fields
		Err *string
	}{fields(st), errorText(st.Err)})
}

// reconciling has the reconciles of an informer that run, and those that have failed last.
type reconciling struct {
	mu      sync.Mutex
	running map[oneReconcile]time.Time
	failed  map[string]failedReconcile // By the reconciler's name.
}

type oneReconcile struct {
	reconciler string
	object     cache.ObjectName
}

type failedReconcile struct {
	object cache.ObjectName
	err    error
}

func (r *reconciling) begun(what oneReconcile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running == nil {
		r.running, r.failed = map[oneReconcile]time.Time{}, map[string]failedReconcile{}
	}
	r.running[what] = time.Now()
}

func (r *reconciling) returned(what oneReconcile, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, what)
	switch {
	case err != nil:
		r.failed[what.reconciler] = failedReconcile{what.object, err}
	case r.failed[what.reconciler].object == what.object:
		delete(r.failed, what.reconciler)
	}
}

// ended forgets what has failed in a reconciler that has ended.
func (r *reconciling) ended(reconciler string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failed, reconciler)
}

// status completes the states of the workqueues of all reconcilers.
func (r *reconciling) status(queues []workqueue.Status) []ReconcilerStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []ReconcilerStatus
	for _, queue := range queues {
		st := ReconcilerStatus{Status: queue}
		for what, since := range r.running {
			if what.reconciler != queue.Name {
				continue
			}
			name := what.object.String()
			if st.Reconciling == "" || cmp.Or(since.Compare(st.ReconcilingSince), cmp.Compare(name, st.Reconciling)) < 0 {
				st.Reconciling, st.ReconcilingSince = name, since
			}
		}
		if failed, ok := r.failed[queue.Name]; ok {
			st.Err = fmt.Errorf("reconcile %s: %w", failed.object, failed.err)
		}
		all = append(all, st)
	}
	return all
}

// unreturned returns what has not returned.
func (r *reconciling) unreturned() (all []unreturned) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for what, since := range r.running {
		all = append(all, unreturned{"reconciler", what.reconciler, what.object.String(), since})
	}
	slices.SortFunc(all, func(a, b unreturned) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.object, b.object))
	})
	return all
}
