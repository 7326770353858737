// Package source has a ListerWatcher with the manners of kube-apiserver, and the objects in it.
package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
)

// Source is a ListerWatcher with the manners of kube-apiserver: one resource, a history that can be compacted, pages,
// WatchList, and watches from the future that stay silent. All methods are safe for concurrent use. Fields are changed
// in With.
type Source struct {
	mu        sync.Mutex
	RV        int64 // The newest resourceVersion.
	Objects   map[string]runtime.Object
	History   []watch.Event // Each of its own resourceVersion, oldest first.
	compacted int64         // History begins behind this version.
	uids      int
	streams   map[*stream]struct{}
	Pages     map[string][]runtime.Object // Snapshots, by continue token.
	requests  []string
	asked     []string // Field selectors of lists that ask for one object by its name.

	// down is what every request gets, if it is set.
	down error
	// Hold keeps every request waiting, if it is set, until it is closed.
	Hold chan struct{}
	// latency is how late the events of a watch are that is opened now.
	latency time.Duration
	// OnList and OnWatch answer requests, if they are set and return anything.
	OnList  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	OnWatch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// New returns a source whose watches end with the test.
func New(t *testing.T, objects ...runtime.Object) *Source {
	f := Of(objects...)
	t.Cleanup(f.CloseWatches)
	return f
}

// Of returns a source for a program that is no test.
func Of(objects ...runtime.Object) *Source {
	f := &Source{Objects: map[string]runtime.Object{}, streams: map[*stream]struct{}{}, Pages: map[string][]runtime.Object{}}
	f.Put(objects...)
	return f
}

var _ cache.ListerWatcherWithContext = (*Source)(nil)

// List implements cache.ListerWatcher.
func (f *Source) List(o metav1.ListOptions) (runtime.Object, error) {
	return f.ListWithContext(context.Background(), o)
}

// Watch implements cache.ListerWatcher.
func (f *Source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return f.WatchWithContext(context.Background(), o)
}

// IsWatchListSemanticsUnSupported is asked by k8s.io/client-go/util/watchlist.
func (f *Source) IsWatchListSemanticsUnSupported() bool { return true }

// Copy returns a source with the same objects, version and history.
func (f *Source) Copy(t *testing.T) *Source {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := New(t)
	c.RV, c.uids, c.History = f.RV, f.uids, slices.Clone(f.History)
	for key, obj := range f.Objects {
		c.Objects[key] = obj.DeepCopyObject()
	}
	return c
}

// Put creates or updates objects.
func (f *Source) Put(objects ...runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, obj := range objects {
		obj = obj.DeepCopyObject()
		key, typ := Key(obj), watch.Added
		if old := f.Objects[key]; old != nil {
			typ = watch.Modified
			Meta(obj).SetUID(Meta(old).GetUID())
		} else if Meta(obj).GetUID() == "" {
			f.uids++
			Meta(obj).SetUID(types.UID(fmt.Sprintf("uid-%d", f.uids)))
		}
		f.RecordLocked(typ, obj)
		f.Objects[key] = obj
	}
}

// Remove deletes objects by name, in namespace ns.
func (f *Source) Remove(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		old := f.Objects["ns/"+name]
		delete(f.Objects, "ns/"+name)
		f.RecordLocked(watch.Deleted, old.DeepCopyObject())
	}
}

// RecordLocked gives an object the next version, and sends the event to the open watches.
func (f *Source) RecordLocked(typ watch.EventType, obj runtime.Object) {
	f.RV++
	Meta(obj).SetResourceVersion(f.rvLocked())
	e := watch.Event{Type: typ, Object: obj}
	f.History = append(f.History, e)
	for s := range f.streams {
		if s.from < f.RV {
			s.pushLocked(e)
		}
	}
}

func (f *Source) rvLocked() string { return strconv.FormatInt(f.RV, 10) }

// Emit sends an event to the open watches that is in no history.
func (f *Source) Emit(typ watch.EventType, obj runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.streams {
		s.pushLocked(watch.Event{Type: typ, Object: obj})
	}
}

// Bookmark sends a bookmark of the present version, which it makes new.
func (f *Source) Bookmark() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.RV++
	for s := range f.streams {
		s.pushLocked(Bookmark(f.rvLocked()))
	}
}

// Bookmark returns the event of a bookmark.
func Bookmark(rv string) watch.Event {
	return watch.Event{Type: watch.Bookmark, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: rv}}}
}

// Compact forgets the history.
func (f *Source) Compact() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.History = nil
	f.RV++
	f.compacted = f.RV
}

// Restart closes all watches and forgets the history, as an API server does.
func (f *Source) Restart() {
	f.Compact()
	f.CloseWatches()
}

// CloseWatches ends the open watches without an error.
func (f *Source) CloseWatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.streams {
		s.endLocked()
	}
}

// Rewind sets the version back, with all watches closed and other content.
func (f *Source) Rewind(rv int64, objects ...runtime.Object) { f.Become(rv, 0, objects) }

// Become sets version, history and content, with all watches closed.
func (f *Source) Become(rv, compacted int64, objects []runtime.Object) {
	f.With(func() {
		f.RV, f.compacted, f.History = rv, compacted, nil
		clear(f.Objects)
		for _, obj := range objects {
			f.Objects[Key(obj)] = obj
		}
	})
	f.CloseWatches() // Not before: who watches again must not meet the server as it was.
}

// With changes settings under the lock.
func (f *Source) With(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// SetDown makes every request fail, and ends what is open.
func (f *Source) SetDown(err error) {
	f.With(func() { f.down = err })
	f.CloseWatches()
}

// ErrUnreachable is what a client gets without a network.
var ErrUnreachable = errors.New("dial tcp: connect: no route to host")

// TakeRequests returns the requests since the last call.
func (f *Source) TakeRequests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.requests
	f.requests = nil
	return r
}

// Contents are the objects as key@resourceVersion, sorted.
func (f *Source) Contents() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Versions(slices.Collect(maps.Values(f.Objects)))
}

// DeletedAfter reports whether this version of an object has been deleted.
func (f *Source) DeletedAfter(obj any) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.History, func(e watch.Event) bool {
		return e.Type == watch.Deleted && Key(e.Object) == Key(obj) && VersionNumber(e.Object) > VersionNumber(obj)
	})
}

// Relisted makes an informer relist after changes that its watch has missed.
func Relisted(f *Source, changes func()) {
	f.SetDown(ErrUnreachable)
	bubble.Settle()
	changes()
	f.Compact()
	f.SetDown(nil)
	bubble.Settle()
}

// Lose makes changes of which no watch tells, neither one that is open nor a later one.
func (f *Source) Lose(changes func()) {
	var open map[*stream]struct{}
	var history int
	f.With(func() { open, history, f.streams = f.streams, len(f.History), map[*stream]struct{}{} })
	changes()
	f.With(func() { f.streams, f.History = open, f.History[:history] })
}

// Change makes changes that are written as "put b" or "remove b".
func (f *Source) Change(changes ...string) {
	for _, c := range changes {
		switch verb, name, _ := strings.Cut(c, " "); verb {
		case "put":
			f.Put(ConfigMap(name))
		case "remove":
			f.Remove(name)
		}
	}
}

// TakeRequestsInOrder is takeRequests. A watch is opened beside the question, and comes after it here.
func (f *Source) TakeRequestsInOrder() []string {
	got := f.TakeRequests()
	for i := range max(0, len(got)-1) {
		if strings.HasPrefix(got[i], "WATCH") && got[i+1] == "LIST limit=1" {
			got[i], got[i+1] = got[i+1], got[i]
		}
	}
	return got
}
