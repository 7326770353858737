package controllerruntime

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	clientworkqueue "k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/workqueue"
)

// NewQueue returns a value for the option NewQueue of a controller. The file of the Cache then has the controller's
// requests, under the controller's name, until a reconcile has returned no error and asked for no other. The next
// process begins with the requests that are waiting, being reconciled, failed, or to be repeated later. So no deletion
// is lost, although no handler gets it again. The requests of a controller that was renamed stay in the file, see
// Workqueues in the Status of the Cache, until Workqueues().Forget is called. The file belongs to this process: while
// another one is elected, on another node, the requests wait until this one is again.
//
// The queue is client-go's, without the priorities of controller-runtime's own. As with that one, when the manager
// stops, waiting requests are not reconciled any more: they are for the next process. The queue is in memory only, and
// the log says so, if the name has a queue in this process that still has work, or if its requests cannot be read.
func NewQueue(cache *warmwatch.Cache) func(controllerName string, rateLimiter clientworkqueue.TypedRateLimiter[reconcile.Request]) clientworkqueue.TypedRateLimitingInterface[reconcile.Request] {
	return func(name string, rateLimiter clientworkqueue.TypedRateLimiter[reconcile.Request]) clientworkqueue.TypedRateLimitingInterface[reconcile.Request] {
		queue, err := workqueue.New(cache.Workqueues(), name, workqueue.Options[reconcile.Request]{
			Codec: Requests{}, RateLimiter: rateLimiter, LeaveAtShutDown: true,
		})
		if err != nil {
			cache.Logger().Error(err, "The requests of a controller are in memory only", "controller", name)
			return clientworkqueue.NewTypedRateLimitingQueueWithConfig(rateLimiter, clientworkqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name})
		}
		return queue
	}
}

// Requests is the [workqueue.Codec] of requests.
type Requests struct{}

// Encode implements [workqueue.Codec].
func (Requests) Encode(request reconcile.Request) string {
	return request.Namespace + "/" + request.Name
}

// Decode implements [workqueue.Codec].
func (Requests) Decode(key string) (reconcile.Request, error) {
	namespace, name, ok := strings.Cut(key, "/")
	if !ok {
		return reconcile.Request{}, fmt.Errorf("%q is no request, it has no slash", key)
	}
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}, nil
}
