package warmwatch_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// source is a ListerWatcher with the manners of kube-apiserver: one resource,
// a history that can be compacted, pages, WatchList, and watches from the
// future that stay silent. All methods are safe for concurrent use.
type source struct {
	mu        sync.Mutex
	rv        int64
	objects   map[string]runtime.Object
	history   []watch.Event // Each of its own resourceVersion, oldest first.
	compacted int64         // History begins behind this version.
	uids      int
	streams   map[*stream]struct{}
	pages     map[string][]runtime.Object // Snapshots, by continue token.
	requests  []string
	asked     []string // Field selectors of lists that ask for one object by its name.

	// down is what every request gets, if it is set.
	down error
	// hold keeps every request waiting, if it is set, until it is closed.
	hold chan struct{}
	// latency is how late the events of a watch are that is opened now.
	latency time.Duration
	// onList and onWatch answer requests, if they are set and return anything.
	onList  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	onWatch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func newSource(t *testing.T, objects ...runtime.Object) *source {
	f := newSourceOf(objects...)
	t.Cleanup(f.closeWatches)
	return f
}

func newSourceOf(objects ...runtime.Object) *source {
	f := &source{objects: map[string]runtime.Object{}, streams: map[*stream]struct{}{}, pages: map[string][]runtime.Object{}}
	f.put(objects...)
	return f
}

var _ cache.ListerWatcherWithContext = (*source)(nil)

func (f *source) List(o metav1.ListOptions) (runtime.Object, error) {
	return f.ListWithContext(context.Background(), o)
}

func (f *source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return f.WatchWithContext(context.Background(), o)
}

// IsWatchListSemanticsUnSupported is asked by k8s.io/client-go/util/watchlist.
func (f *source) IsWatchListSemanticsUnSupported() bool { return true }

// configMap returns an object with some content.
func configMap(name string, content ...string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if len(content) > 0 {
		cm.Data = map[string]string{"v": content[0]}
	}
	return cm
}

func accessor(obj any) metav1.Object {
	m, err := meta.Accessor(obj)
	if err != nil {
		panic(err)
	}
	return m
}

func keyOf(obj any) string {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		panic(err)
	}
	return key
}

// copy returns a source with the same objects, version and history.
func (f *source) copy(t *testing.T) *source {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := newSource(t)
	c.rv, c.uids, c.history = f.rv, f.uids, slices.Clone(f.history)
	for key, obj := range f.objects {
		c.objects[key] = obj.DeepCopyObject()
	}
	return c
}

// put creates or updates objects.
func (f *source) put(objects ...runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, obj := range objects {
		obj = obj.DeepCopyObject()
		key, typ := keyOf(obj), watch.Added
		if old := f.objects[key]; old != nil {
			typ = watch.Modified
			accessor(obj).SetUID(accessor(old).GetUID())
		} else if accessor(obj).GetUID() == "" {
			f.uids++
			accessor(obj).SetUID(types.UID(fmt.Sprintf("uid-%d", f.uids)))
		}
		f.recordLocked(typ, obj)
		f.objects[key] = obj
	}
}

// remove deletes objects by name, in namespace ns.
func (f *source) remove(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		old := f.objects["ns/"+name]
		delete(f.objects, "ns/"+name)
		f.recordLocked(watch.Deleted, old.DeepCopyObject())
	}
}

func (f *source) recordLocked(typ watch.EventType, obj runtime.Object) {
	f.rv++
	accessor(obj).SetResourceVersion(f.rvLocked())
	e := watch.Event{Type: typ, Object: obj}
	f.history = append(f.history, e)
	for s := range f.streams {
		if s.from < f.rv {
			s.pushLocked(e)
		}
	}
}

func (f *source) rvLocked() string { return strconv.FormatInt(f.rv, 10) }

// emit sends an event to the open watches that is in no history.
func (f *source) emit(typ watch.EventType, obj runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.streams {
		s.pushLocked(watch.Event{Type: typ, Object: obj})
	}
}

// bookmark sends a bookmark of the present version, which it makes new.
func (f *source) bookmark() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rv++
	for s := range f.streams {
		s.pushLocked(bookmark(f.rvLocked()))
	}
}

func bookmark(rv string) watch.Event {
	return watch.Event{Type: watch.Bookmark, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: rv}}}
}

// compact forgets the history.
func (f *source) compact() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.history = nil
	f.rv++
	f.compacted = f.rv
}

// restart closes all watches and forgets the history, as an API server does.
func (f *source) restart() {
	f.compact()
	f.closeWatches()
}

// closeWatches ends the open watches without an error.
func (f *source) closeWatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.streams {
		s.endLocked()
	}
}

// rewind sets the version back, with all watches closed and other content.
func (f *source) rewind(rv int64, objects ...runtime.Object) { f.become(rv, 0, objects) }

func (f *source) become(rv, compacted int64, objects []runtime.Object) {
	f.with(func() {
		f.rv, f.compacted, f.history = rv, compacted, nil
		clear(f.objects)
		for _, obj := range objects {
			f.objects[keyOf(obj)] = obj
		}
	})
	f.closeWatches() // Not before: who watches again must not meet the server as it was.
}

// with changes settings under the lock.
func (f *source) with(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// setDown makes every request fail, and ends what is open.
func (f *source) setDown(err error) {
	f.with(func() { f.down = err })
	f.closeWatches()
}

var errUnreachable = errors.New("dial tcp: connect: no route to host")

// takeRequests returns the requests since the last call.
func (f *source) takeRequests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.requests
	f.requests = nil
	return r
}

// contents are the objects as key@resourceVersion, sorted.
func (f *source) contents() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return versions(slices.Collect(maps.Values(f.objects)))
}

func versions[T any](objects []T) []string {
	vs := make([]string, 0, len(objects))
	for _, obj := range objects {
		vs = append(vs, version(obj))
	}
	slices.Sort(vs)
	return vs
}

func version(obj any) string { return keyOf(obj) + "@" + accessor(obj).GetResourceVersion() }

func versionNumber(obj any) int64 {
	n, _ := strconv.ParseInt(accessor(obj).GetResourceVersion(), 10, 64)
	return n
}

// deletedAfter reports whether this version of an object has been deleted.
func (f *source) deletedAfter(obj any) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.history, func(e watch.Event) bool {
		return e.Type == watch.Deleted && keyOf(e.Object) == keyOf(obj) && versionNumber(e.Object) > versionNumber(obj)
	})
}

func tooLarge(rv, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", rv, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

func (f *source) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	f.mu.Lock()
	request := "LIST"
	if o.ResourceVersion != "" {
		request += " rv=" + o.ResourceVersion
	}
	if o.Limit != 0 {
		request += fmt.Sprintf(" limit=%d", o.Limit)
	}
	if o.Continue != "" {
		request += " continue"
	}
	if o.FieldSelector != "" {
		f.asked = append(f.asked, o.FieldSelector)
	} else {
		f.requests = append(f.requests, request)
	}
	onList, down, hold := f.onList, f.down, f.hold
	f.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if down != nil {
		return nil, down
	}
	if onList != nil {
		if list, err := onList(ctx, o); list != nil || err != nil {
			return list, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listLocked(o)
}

func (f *source) listLocked(o metav1.ListOptions) (runtime.Object, error) {
	if wanted, _ := strconv.ParseInt(o.ResourceVersion, 10, 64); wanted > f.rv {
		return nil, tooLarge(wanted, f.rv)
	}
	selector, err := fields.ParseSelector(o.FieldSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var items []runtime.Object
	rv := f.rvLocked()
	if o.Continue != "" {
		items = f.pages[o.Continue]
		rv = o.Continue[:slices.Index([]byte(o.Continue), ' ')]
	} else {
		for _, key := range slices.Sorted(maps.Keys(f.objects)) {
			m := accessor(f.objects[key])
			if selector.Matches(fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}) {
				items = append(items, f.objects[key].DeepCopyObject())
			}
		}
	}
	list := &corev1.List{ListMeta: metav1.ListMeta{ResourceVersion: rv}}
	if rest := int64(len(items)) - o.Limit; o.Limit > 0 && rest > 0 {
		list.Continue = fmt.Sprintf("%s %d", rv, len(f.pages))
		list.RemainingItemCount = new(rest)
		f.pages[list.Continue] = items[o.Limit:]
		items = items[:o.Limit]
	}
	return list, meta.SetList(list, items)
}

func (f *source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	f.mu.Lock()
	f.requests = append(f.requests, "WATCH rv="+o.ResourceVersion)
	onWatch, down, hold := f.onWatch, f.down, f.hold
	f.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if down != nil {
		return nil, down
	}
	if onWatch != nil {
		if w, err := onWatch(ctx, o); w != nil || err != nil {
			return w, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	from, _ := strconv.ParseInt(o.ResourceVersion, 10, 64)
	s := newStream(f, from)
	switch {
	case from == 0:
		s.from = f.rv
		for _, key := range slices.Sorted(maps.Keys(f.objects)) {
			s.pushLocked(watch.Event{Type: watch.Added, Object: f.objects[key]})
		}
	case from < f.compacted:
		s.pushLocked(gone(fmt.Sprintf("too old resource version: %d (%d)", from, f.compacted)))
	default:
		for _, e := range f.history {
			if versionNumber(e.Object) > from {
				s.pushLocked(e)
			}
		}
	}
	return s, nil
}

func gone(message string) watch.Event {
	return watch.Event{Type: watch.Error, Object: new(apierrors.NewResourceExpired(message).Status())}
}

// stream is a watch of a source.
type stream struct {
	f    *source
	from int64
	ch   chan watch.Event
	wake chan struct{} // Capacity 1.
	stop chan struct{}
	once sync.Once

	queue []watch.Event // Guarded by f.mu, as is ended.
	ended bool
}

func newStream(f *source, from int64) *stream {
	s := &stream{f: f, from: from, ch: make(chan watch.Event), wake: make(chan struct{}, 1), stop: make(chan struct{})}
	f.streams[s] = struct{}{}
	latency := f.latency
	go func() {
		time.Sleep(latency)
		s.run()
	}()
	return s
}

func (s *stream) pushLocked(e watch.Event) {
	e.Object = e.Object.DeepCopyObject()
	s.queue = append(s.queue, e)
	s.wakeUp()
}

func (s *stream) endLocked() {
	s.ended = true
	delete(s.f.streams, s)
	s.wakeUp()
}

func (s *stream) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream) run() {
	defer close(s.ch)
	for {
		s.f.mu.Lock()
		queue, ended := s.queue, s.ended
		s.queue = nil
		s.f.mu.Unlock()
		for _, e := range queue {
			select {
			case s.ch <- e:
			case <-s.stop:
				return
			}
		}
		switch {
		case len(queue) > 0:
			continue
		case ended:
			return
		}
		select {
		case <-s.wake:
		case <-s.stop:
			return
		}
	}
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.ch }

// Stop implements watch.Interface.
func (s *stream) Stop() {
	s.once.Do(func() {
		close(s.stop)
		s.f.mu.Lock()
		defer s.f.mu.Unlock()
		s.endLocked()
	})
}
