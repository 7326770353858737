package reflector

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})   // Discards.
	utilruntime.ErrorHandlers = nil // One of them sleeps by a clock that began outside of the bubble.
	goleak.VerifyTestMain(m)
}

// journal are the things that happened, in order. It is safe for concurrent use.
type journal struct {
	mu    sync.Mutex
	lines []string
	all   *journal // Gets every line too, if set.
}

func (j *journal) note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	j.mu.Lock()
	j.lines = append(j.lines, line)
	j.mu.Unlock()
	if j.all != nil {
		j.all.note("%s", line)
	}
}

// logger writes down what is logged at the default level.
func (j *journal) logger() *klog.Logger {
	logger := funcr.New(func(_, args string) { j.note("%s", args) }, funcr.Options{})
	return &logger
}

// take returns the lines since the last call.
func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

func (j *journal) expect(t *testing.T, want ...string) {
	t.Helper()
	advance(3) // As much as a watch takes at most, see server.
	if diff := cmp.Diff(want, j.take()); diff != "" {
		t.Errorf("unexpected (-want +got):\n%s", diff)
	}
}

// An answer of the server: a list, a *stream, or an error.
type answer func(context.Context, *server) (any, error)

// server is a ListerWatcher that answers each request with the next one of its
// answers. A request too many, or one too few, fails the test.
type server struct {
	t        *testing.T
	requests *journal
	// streamsLists: its client may ask it for WatchList.
	streamsLists bool

	mu      sync.Mutex
	answers []answer
	opened  []*stream
	asked   chan struct{} // The last question. It is closed when that is answered.
}

var _ cache.ListerWatcherWithContext = (*server)(nil)

func (s *server) IsWatchListSemanticsUnSupported() bool { return !s.streamsLists }

func (s *server) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

func (s *server) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

func (s *server) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.Limit == 1 {
		asked := make(chan struct{})
		defer close(asked)
		s.mu.Lock()
		s.asked = asked
		s.mu.Unlock()
	}
	got, err := s.answer(ctx, describe("LIST", o))
	if err != nil {
		return nil, err
	}
	list, ok := got.(runtime.Object)
	if !ok {
		s.t.Errorf("the script answers a list with a %T", got)
		return nil, errScript
	}
	return list, nil
}

func (s *server) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	verb := "WATCH"
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		verb = "STREAM"
	} else if err := s.awaitQuestion(ctx); err != nil {
		return nil, err
	}
	if !o.AllowWatchBookmarks || o.TimeoutSeconds == nil || *o.TimeoutSeconds < 300 || *o.TimeoutSeconds > 600 {
		s.t.Errorf("a watch without bookmarks or without a timeout of 5 to 10 minutes: %+v", o)
	}
	got, err := s.answer(ctx, describe(verb, o))
	if err != nil {
		return nil, err
	}
	w, ok := got.(*stream)
	if !ok {
		s.t.Errorf("the script answers a watch with a %T", got)
		return nil, errScript
	}
	return w, nil
}

// awaitQuestion has a watch opened once the question that is asked at the same time is answered: the script has the
// answers in that order.
func (s *server) awaitQuestion(ctx context.Context) error {
	time.Sleep(time.Nanosecond)
	s.mu.Lock()
	asked := s.asked
	s.mu.Unlock()
	if asked != nil {
		select {
		case <-asked:
			time.Sleep(time.Nanosecond)
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

func describe(verb string, o metav1.ListOptions) string {
	if o.ResourceVersion != "" {
		verb += " rv=" + o.ResourceVersion
	}
	if o.Limit != 0 {
		verb += fmt.Sprintf(" limit=%d", o.Limit)
	}
	if o.Continue != "" {
		verb += " continue=" + o.Continue
	}
	if o.FieldSelector != "" {
		verb += " " + o.FieldSelector
	}
	if o.ResourceVersionMatch != "" {
		verb += " " + string(o.ResourceVersionMatch)
	}
	return verb
}

var errScript = errors.New("the script has no answer")

func (s *server) answer(ctx context.Context, request string) (any, error) {
	s.requests.note("%s", request)
	s.mu.Lock()
	if len(s.answers) == 0 {
		s.mu.Unlock()
		s.t.Errorf("the script has no answer to %s", request)
		return nil, errScript
	}
	next := s.answers[0]
	s.answers = s.answers[1:]
	s.mu.Unlock()
	return next(ctx, s)
}

// then adds answers.
func (s *server) then(as ...answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, as...)
}

// last is the watch that was opened last.
func (s *server) last() *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened[len(s.opened)-1]
}

// check reports answers that nobody asked for, and watches that nobody stopped.
func (s *server) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.answers); n > 0 {
		s.t.Errorf("%d answers were not asked for", n)
	}
	for i, w := range s.opened {
		if w.stopped() == 0 {
			s.t.Errorf("of %d watches, number %d was never stopped", len(s.opened), i+1)
		}
	}
}

// page is one page of a list, of the version that the server has.
func page(rv, next string, items ...string) answer {
	return func(context.Context, *server) (any, error) {
		list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: rv, Continue: next}}
		for _, name := range items {
			list.Items = append(list.Items, *configMap(name))
		}
		return list, nil
	}
}

func lists(rv string, items ...string) answer { return page(rv, "", items...) }

// says answers the question by a version alone.
func says(rv string) answer { return page(rv, "more") }

func fails(err error) answer {
	return func(context.Context, *server) (any, error) { return nil, err }
}

// opens a watch with some events, that stays open.
func opens(events ...watch.Event) answer {
	return func(_ context.Context, s *server) (any, error) {
		w := &stream{events: make(chan watch.Event, 1000)}
		w.send(events...)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.opened = append(s.opened, w)
		return w, nil
	}
}

// closes opens a watch that ends after its events.
func closes(events ...watch.Event) answer {
	return func(ctx context.Context, s *server) (any, error) {
		got, err := opens(events...)(ctx, s)
		got.(*stream).end()
		return got, err
	}
}

// after waits before it answers, but not for longer than the client does.
func after(d time.Duration, a answer) answer {
	return func(ctx context.Context, s *server) (any, error) {
		select {
		case <-time.After(d):
			return a(ctx, s)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// hangs until the client gives up.
func hangs(ctx context.Context, _ *server) (any, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// heedless waits for release, whatever becomes of the client.
func heedless(release <-chan struct{}, a answer) answer {
	return func(ctx context.Context, s *server) (any, error) {
		<-release
		return a(ctx, s)
	}
}

// stream is a watch.
type stream struct {
	events chan watch.Event
	// stopTakes is how long Stop takes.
	stopTakes time.Duration

	mu    sync.Mutex
	ended bool
	stops int
}

// ResultChan implements watch.Interface.
func (w *stream) ResultChan() <-chan watch.Event { return w.events }

// Stop implements watch.Interface.
func (w *stream) Stop() {
	w.mu.Lock()
	w.stops++
	w.mu.Unlock()
	w.end()
	time.Sleep(w.stopTakes)
}

func (w *stream) stopped() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stops
}

func (w *stream) send(events ...watch.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		if !w.ended {
			w.events <- e
		}
	}
}

func (w *stream) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.ended = true
		close(w.events)
	}
}

// configMap makes an object of name@resourceVersion.
func configMap(version string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{}
	cm.Name, cm.ResourceVersion, _ = strings.Cut(version, "@")
	return cm
}

func added(version string) watch.Event {
	return watch.Event{Type: watch.Added, Object: configMap(version)}
}
func modified(version string) watch.Event {
	return watch.Event{Type: watch.Modified, Object: configMap(version)}
}
func deleted(version string) watch.Event {
	return watch.Event{Type: watch.Deleted, Object: configMap(version)}
}
func bookmark(rv string) watch.Event {
	return watch.Event{Type: watch.Bookmark, Object: configMap("@" + rv)}
}

// initialEnd is the bookmark that ends the list in a stream.
func initialEnd(rv string) watch.Event {
	cm := configMap("@" + rv)
	cm.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	return watch.Event{Type: watch.Bookmark, Object: cm}
}

func failure(err *apierrors.StatusError) watch.Event {
	return watch.Event{Type: watch.Error, Object: &err.ErrStatus}
}

var (
	errGone     = apierrors.NewResourceExpired("too old resource version: 5 (8)")
	errInternal = apierrors.NewInternalError(errors.New("etcd is tired"))
	errSoon     = apierrors.NewServiceUnavailable("soon")
	errBusy     = apierrors.NewTooManyRequests("slow down", 1)
	errNetwork  = errors.New("dial tcp: connect: no route to host")
)

// tooLarge is what a server says that has not reached a version.
func tooLarge() *apierrors.StatusError {
	err := apierrors.NewTimeoutError("the server is slow", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}
