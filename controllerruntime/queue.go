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

// NewQueue returns what the option NewQueue of a controller takes. The controller's requests are then
// in the file of the Cache, under the controller's name, until a reconcile has returned no error and
// asked for no other: a request that is in the queue when the process ends, that is being reconciled,
// that has failed, or that is to be repeated later, is the first thing that the next process reconciles.
// A deletion, of which no handler is told again, is not lost that way. What a controller that gets another name has left
// stays in the file, see Workqueues in the Status of the Cache, until its method Workqueues().Forget is called.
// The file is this process's: where another one is elected, on another node, the requests wait until this one is again.
//
// The queue is client-go's, without the priorities of controller-runtime's own. As with that one, no
// request is reconciled any more that waits when the manager is told to end: it is for the next process. If the name has a
// queue in this process that still has work, a second one is kept in memory only, which the log says;
// so is one whose requests cannot be read.
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
