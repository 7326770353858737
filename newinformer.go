package warmwatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
)

// NewInformer makes an informer whose identity is what its ListerWatcher asks the API server for: group, version,
// resource, namespace, selectors, form (typed, metadata, unstructured), and the path before /api or /apis. Informer
// factories and controller-runtime's cache.Options.NewInformer take it, because it has the signature of client-go's
// [cache.NewSharedIndexInformer]:
//
//	config.Wrap(c.WrapTransport) // Before clients are made of it.
//	factory.InformerFor(&corev1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
//		lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "", fields.Everything())
//		return c.NewInformer(lw, &corev1.Pod{}, resync, nil)
//	})
//
// When it runs, and before small requests of its own, it opens a watch. The wrapped transport recognises that by its
// context and answers it without the network. So this works offline too, unless the client gets its credentials over
// the network. The error of this call is not reported. If the transport does not see the watch, it is sent, and
// stopped. It takes no token of the client's rate limiter, like all requests of the informer's own.
//
// The informer works from memory in two cases: the request cannot be seen (transport not wrapped, or the ListerWatcher
// drops its context), or another informer of this Cache has the identity. If the context of that informer ends within 1
// s, the new one waits up to 10 s for its end. If a ListerWatcher asks for more than one thing (two namespaces), each
// process begins with a list. Status and the log say so. Options of the Cache that are defaults of InformerOptions
// apply. The informer is a *[SharedIndexInformer]. Without an example, objects may be of any type, and the informer is
// client-go's own.
//
// A Cache is for one cluster. If two informers ask two clusters for the same, the second one works from memory.
//
// Until it runs, it holds nothing in the file, does not know what is pending for its handlers, and has in its store
// what the program puts there. After Close it does not run, and its store cannot be read.
func (c *Cache) NewInformer(lw cache.ListerWatcher, example runtime.Object, defaultResync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	return c.NewInformerFunc(InformerOptions{})(lw, example, defaultResync, indexers)
}

// NewInformerFunc returns [Cache.NewInformer] with options: a Name, which is part of the identity, versions,
// Transformed, NeverResume. The arguments of the returned function are ResyncPeriod and Indexers. It panics if o has a
// Resource, namespace or selector: the request says what is listed.
func (c *Cache) NewInformerFunc(o InformerOptions) func(lw cache.ListerWatcher, example runtime.Object, defaultResync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	if err := o.checkLearning(); err != nil {
		panic(err)
	}
	return func(lw cache.ListerWatcher, example runtime.Object, defaultResync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
		if example == nil {
			c.NotPersisted("without an example object")
			return cache.NewSharedIndexInformer(lw, nil, defaultResync, indexers)
		}
		o := o
		o.ResyncPeriod, o.Indexers = max(0, defaultResync), indexers
		return c.newLearningInformer(lw, example, o)
	}
}

// learns reports whether the identity is what the first request asks for, see newLearningInformer.
func (o InformerOptions) learns() bool { return o.Resource == schema.GroupVersionResource{} }

// checkLearning returns an error if o says what is listed.
func (o InformerOptions) checkLearning() error {
	if !o.learns() {
		return fmt.Errorf("warmwatch: new informer: Resource is set to %v, and would be learned from the first request", o.Resource)
	}
	if o.Namespace+o.LabelSelector+o.FieldSelector+o.ShardSelector != "" {
		return fmt.Errorf("warmwatch: new informer: Resource %w, because Namespace or a selector is set", errRequired)
	}
	return nil
}

// newLearningInformer makes an informer that learns its identity from its first request.
func (c *Cache) newLearningInformer(lw cache.ListerWatcher, example runtime.Object, o InformerOptions) *SharedIndexInformer {
	id := unseenIdentity(example, fmt.Sprintf("%T #%d", example, c.made.Add(1)))
	return c.newInformer(lw, example, o, c.newPlace(id, request.Asked{}))
}

// unseenIdentity is that of an informer whose request cannot be seen.
func unseenIdentity(example runtime.Object, name string) checkpoint.Identity {
	id := checkpoint.Identity{Resource: "unknown", Name: name, Form: formOf(example)}
	switch example.(type) {
	case *corev1.Event, *eventsv1.Event:
		id.Resource = eventsResource
	}
	return id
}

// look returns the request that a watch would make: unlike a List it takes no token of the client's rate limiter. A
// call that hangs is left behind when ctx is done.
func (s *SharedIndexInformer) look(ctx context.Context) (*request.Seen, error) {
	type result struct {
		seen *request.Seen
		err  error
	}
	looked := make(chan result, 1)
	go func() {
		lw := cache.ToListerWatcherWithContext(s.lw)
		seen, err := request.Look(ctx, func(ctx context.Context) error {
			w, err := lw.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: "1", AllowWatchBookmarks: true, TimeoutSeconds: new(int64(1))})
			if err == nil && w != nil { // It was sent, because it cannot be seen.
				w.Stop()
			}
			if answer := apierrors.APIStatus(nil); errors.As(err, &answer) { // So it was, too.
				return nil
			}
			return err
		})
		looked <- result{seen, err}
	}()
	select {
	case r := <-looked:
		if r.err == nil {
			s.seen.Store(&lastSeen{r.seen, time.Now()})
		}
		return r.seen, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// seenAge is how long a request that was seen is used again, for the server's cluster and schema: its
// credentials may expire.
const seenAge = 5 * time.Second

type lastSeen struct {
	*request.Seen
	at time.Time
}

// lookAgain is look, unless a request was seen a moment ago. It fails if the request is for something else than the
// informer was made for.
func (s *SharedIndexInformer) lookAgain(ctx context.Context) (*request.Seen, error) {
	if last := s.seen.Load(); last != nil && time.Since(last.at) < seenAge {
		return last.Seen, s.checkRequest(last.Asked)
	}
	seen, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	return seen, s.checkRequest(seen.Asked)
}

// identify finds out what the informer is for, and so its place in the file, or that it must work from memory. It reports false if the informer has ended meanwhile.
func (s *SharedIndexInformer) identify(ctx context.Context) bool {
	err := request.ErrNotSeen
	if s.cache.wrapped.Load() {
		var seen *request.Seen
		if seen, err = s.lookUntilSeen(ctx); err == nil {
			err = s.moveTo(ctx, seen)
		}
	}
	if ctx.Err() != nil || errors.Is(err, ErrClosed) {
		return false
	}
	if err != nil {
		s.progress.set(CodeFromMemory, workingFromMemory(err))
		s.place.Load().logger.Error(err, "Working from memory, the next process begins with a list")
	}
	return true
}

// lookBackoff is client-go's for lists that fail, see NewReflectorWithOptions.
var lookBackoff = wait.Backoff{Duration: 800 * time.Millisecond, Cap: 30 * time.Second, Steps: 1 << 30, Factor: 2, Jitter: 1}

// lookUntilSeen returns the ListerWatcher's request. It tries again while that cannot be made,
// as a Reflector does.
func (s *SharedIndexInformer) lookUntilSeen(ctx context.Context) (*request.Seen, error) {
	for backoff := lookBackoff; ; {
		seen, err := s.look(ctx)
		if err == nil || errors.Is(err, request.ErrNotSeen) {
			return seen, err
		}
		if ctx.Err() == nil {
			s.progress.Disconnected(fmt.Errorf("warmwatch: list, in order to see what the ListerWatcher asks for: %w", err))
			s.watchFailed(ctx, err)
		}
		if !pause(ctx, backoff.Step()) {
			return nil, ctx.Err()
		}
	}
}

// watchFailed tells the handler of watch errors of one that came before there is a Reflector,
// with a Reflector that does not run.
func (s *SharedIndexInformer) watchFailed(ctx context.Context, err error) {
	handler := s.watchErrorHandler
	if handler == nil {
		handler = cache.DefaultWatchErrorHandler
	}
	p := s.place.Load()
	r := cache.NewReflectorWithOptions(s.lw, s.example, &s.store, cache.ReflectorOptions{Logger: &p.logger})
	handler(klog.NewContext(ctx, p.logger), r, err)
}

// moveTo gives the informer the place of what its request asks for, once a predecessor has left it.
func (s *SharedIndexInformer) moveTo(ctx context.Context, seen *request.Seen) error {
	id := identityOf(s.example, seen.Asked)
	id.Path, id.Name = seen.Path(), s.opts.Name
	to := s.cache.newPlace(id, seen.Asked)
	if err := s.claimSpace(ctx, to); err != nil {
		return err
	}
	from := s.place.Swap(to)
	s.cache.release(from.space, s)
	return nil
}

const (
	// stopPatience is how long an informer waits for its predecessor to end.
	stopPatience = 10 * time.Second
	// stopNotice is how long it waits for the predecessor to be told to end:
	// controller-runtime makes the new informer right after it has closed a
	// channel, which other goroutines turn into the end of the old one's context.
	stopNotice = time.Second
	stopPoll   = 5 * time.Millisecond
)

// claimSpace claims the space of a place.
func (s *SharedIndexInformer) claimSpace(ctx context.Context, to *place) error {
	for begun := time.Now(); ; {
		predecessor, err := s.cache.claim(to, s)
		if !errors.Is(err, ErrInUse) {
			return err
		}
		patience := stopNotice
		if predecessor.isEnding() {
			patience, err = stopPatience, fmt.Errorf("%w, and does not end", err)
		}
		if time.Since(begun) >= patience {
			return err
		}
		if !pause(ctx, stopPoll) {
			return ctx.Err()
		}
	}
}
