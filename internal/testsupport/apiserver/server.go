// Package apiserver has a fake kube-apiserver for tests of informers. It serves one
// resource in one namespace. Its history is a function of a source of randomness, so
// that each process of a test can have the same server.
package apiserver

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// An Object is what the server has. One that it returns must not be changed.
type Object interface {
	runtime.Object
	metav1.Object
}

// Key is the key of an object.
func Key(obj metav1.Object) string { return cache.MetaObjectToName(obj).String() }

// An Event is one change. The object of a deletion has the resourceVersion of the deletion.
type Event struct {
	Type   watch.EventType
	Object Object
}

// ApplyTo makes the change to objects by key.
func (e Event) ApplyTo(objects map[string]Object) {
	if key := Key(e.Object); e.Type == watch.Deleted {
		delete(objects, key)
	} else {
		objects[key] = e.Object
	}
}

// Options configures New.
type Options struct {
	// Rand decides what changes. Equal ones make equal histories. Only the server uses it.
	Rand *rand.Rand
	// Names is how many names the objects have.
	Names int
	// Example and List are an object and a list of the resource, both empty. Default a
	// ConfigMap and a ConfigMapList.
	Example Object
	List    runtime.Object
	// Fill gives an object its contents. It is called with each new version of an object,
	// which is empty but for its metadata.
	Fill func(*rand.Rand, Object)
	// SelectAgain: an object may come back after its deletion, as one that a selector selects again.
	SelectAgain bool
	// PageDelay is what a page of a list takes, from the second on. It is for commits to come in between, in a
	// synctest bubble. Default none.
	PageDelay time.Duration
}

// Server is a ListerWatcher with a history that it never forgets, although it may answer
// that it has. All methods are safe for concurrent use.
type Server struct {
	options Options

	mu        sync.Mutex
	events    []Event           // events[i] has resourceVersion i+1.
	objects   map[string]Object // What exists, by key.
	compacted int               // Watches from before this version get 410.
	failPages int               // So many continuations of lists are refused.
	down      error             // Not nil: what every request gets.
	watches   map[*watcher]struct{}
}

var _ cache.ListerWatcherWithContext = (*Server)(nil)

// New returns a server at version 0.
func New(o Options) *Server {
	if o.Example == nil {
		o.Example, o.List = &corev1.ConfigMap{}, &corev1.ConfigMapList{}
	}
	return &Server{options: o, objects: map[string]Object{}, watches: map[*watcher]struct{}{}}
}

// Advance makes changes, each of which is one version.
func (s *Server) Advance(changes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range changes {
		e := s.nextLocked()
		s.events = append(s.events, e)
		e.ApplyTo(s.objects)
	}
	for w := range s.watches {
		w.kick()
	}
}

// nextLocked decides on the next change. What it depends on is in the history only, not in
// how many changes are made at once.
func (s *Server) nextLocked() Event {
	rng, rv := s.options.Rand, len(s.events)+1
	obj := s.options.Example.DeepCopyObject().(Object)
	obj.SetNamespace("ns")
	obj.SetName(fmt.Sprintf("object-%03d", rng.IntN(s.options.Names)))
	obj.SetUID(types.UID(fmt.Sprint("uid-", rv)))
	if rv > 1 && s.events[rv-2].Type == watch.Deleted && rng.IntN(3) == 0 {
		gone := s.events[rv-2].Object
		obj.SetName(gone.GetName()) // It is made anew under its name.
		if s.options.SelectAgain && rng.IntN(2) == 0 {
			obj.SetUID(gone.GetUID())
		}
	}
	e := Event{watch.Added, obj}
	if old, exists := s.objects[Key(obj)]; exists {
		e.Type = watch.Modified
		if rng.IntN(10) < 3 {
			e = Event{watch.Deleted, old.DeepCopyObject().(Object)}
		}
		obj.SetUID(old.GetUID())
	}
	e.Object.SetResourceVersion(strconv.Itoa(rv))
	if e.Type != watch.Deleted {
		s.options.Fill(rng, e.Object)
	}
	return e
}

// Version is that of the last change.
func (s *Server) Version() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events)
}

// Events are all changes. The i-th, from 1, has resourceVersion i.
func (s *Server) Events() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clip(s.events)
}

// Objects are what exists now, by key.
func (s *Server) Objects() map[string]Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.objects)
}

// ObjectsAt are what existed at a version, by key.
func (s *Server) ObjectsAt(version int) map[string]Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objectsAtLocked(version)
}

func (s *Server) objectsAtLocked(version int) map[string]Object {
	if version == len(s.events) {
		return maps.Clone(s.objects)
	}
	objects := map[string]Object{}
	for _, e := range s.events[:version] {
		e.ApplyTo(objects)
	}
	return objects
}

// Compact forgets the history, as far as clients can tell.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted = len(s.events)
}

// Disconnect ends all watches.
func (s *Server) Disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disconnectLocked()
}

func (s *Server) disconnectLocked() {
	for w := range s.watches {
		w.Stop()
	}
}

// SetDown ends all watches, and has every request fail with err, until it is called with
// nil.
func (s *Server) SetDown(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = err
	s.disconnectLocked()
}

// FailPages refuses the next n continuations of lists.
func (s *Server) FailPages(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failPages = n
}

// Bookmark sends one to all watches.
func (s *Server) Bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.bookmarks++
		w.kick()
	}
}
