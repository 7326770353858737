package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/warmwatch/warmwatch"
)

// errOnPurpose is what a reconcile returns now and then.
var errOnPurpose = errors.New("agent: this reconcile fails on purpose")

// addReconciler adds a reconciler to an informer of warmwatch. What it has done is reported, so that the
// parent knows it when the agent is killed.
func (i *Informer) addReconciler(r Reconciler, tell func(*Event)) error {
	if i.warm == nil {
		return fmt.Errorf("agent: %s has no reconcilers", i.spec.Impl)
	}
	reconcile := func(_ context.Context, req warmwatch.ReconcileRequest) (result warmwatch.ReconcileResult, err error) {
		e := &Event{Resource: i.spec.Resource.Resource, Handler: r.Name, Key: req.String(), Change: Change{Type: "RECONCILED"}}
		obj, exists, err := i.GetStore().GetByKey(e.Key)
		if err != nil {
			return result, err
		}
		if exists {
			e.New = ContentOf(obj, i.spec.Sums)
		}
		for _, deleted := range req.Deleted {
			e.Deleted = append(e.Deleted, ContentOf(deleted, i.spec.Sums))
		}
		switch rand.IntN(10) {
		case 0, 1:
			return result, errOnPurpose
		case 2, 3:
			time.Sleep(rand.N(100 * time.Millisecond))
		case 4:
			time.Sleep(rand.N(time.Second))
			return result, errOnPurpose
		}
		e.At = time.Now()
		tell(e)
		return result, nil
	}
	_, err := i.warm.AddReconciler(r.Name, reconcile, warmwatch.ReconcilerOptions{
		DurableOptions: warmwatch.DurableOptions{Epoch: r.Epoch},
		Workers:        r.Workers,
		RateLimiter:    workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](5*time.Millisecond, time.Second),
	})
	return err
}
