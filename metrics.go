package warmwatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/reflector"
)

// Metrics are numbers of a [Cache] for monitoring. Counters count since Open. Times are points in time, not ages. A
// time that does not exist is zero.
type Metrics struct {
	Name string
	// Persistent: changes are written to the file. It is false if the Cache works from memory, or if the file is only
	// read.
	Persistent bool
	// Degraded counts the present problems by code: 1 for a problem of the file, the number of informers for the others.
	Degraded map[Code]int
	File     persist.Metrics
	// Informers that run, sorted by space. Two of them may have the same labels: only Informer has form and selectors.
	Informers []InformerMetrics
}

// InformerMetrics are numbers of a [SharedIndexInformer].
type InformerMetrics struct {
	Informer                            string // As in Status.
	Group, Version, Resource, Namespace string
	Name                                string // InformerOptions.Name.
	Objects                             int
	// Live: a watch is open.
	Live        bool
	LastContact time.Time
	// StartedFrom is as in [InformerStatus], like LastContact. CaughtUpAfter is the time from Run to CaughtUp; before
	// CaughtUp it is 0.
	StartedFrom   string
	CaughtUpAfter time.Duration
	Resumes       int
	Relists       map[Cause]int
	// ReceivedBytes counts the bodies of the server's answers, after decompression, by kind of request: list, metadata,
	// objects, watch, question, other. All are 0 if the transport is not wrapped.
	ReceivedBytes map[string]int64
	// Events counts the events of the watch that were applied: added, updated, deleted, bookmark.
	Events map[string]int64
	// Handlers and Reconcilers are as in [InformerStatus].
	Handlers    []HandlerStatus
	Reconcilers []ReconcilerStatus
}

// Metrics returns the present numbers. It takes no lock that an event waits for on its way to the handlers. For a
// reconciler it reads the length of its workqueue under the queue's own lock.
func (c *Cache) Metrics() Metrics {
	m := Metrics{Name: c.opts.Name, Persistent: !c.db.MemoryOnly(), Degraded: map[Code]int{}, File: c.db.Metrics()}
	if code, _, err := c.db.Problem(); err != nil {
		m.Degraded[Code(code)] = 1
		m.Persistent = m.Persistent && code != persist.CodeFileDamaged
	}
	for _, s := range c.all() {
		if p := s.parts.Load(); p != nil {
			m.Informers = append(m.Informers, s.metrics(p, m.Degraded))
		}
	}
	return m
}

// metrics returns the informer's numbers, and adds its problems to the count.
func (s *SharedIndexInformer) metrics(p *parts, problems map[Code]int) InformerMetrics {
	id := p.identity
	m := InformerMetrics{
		Informer: p.name(), Group: id.Group, Version: id.Version, Resource: id.Resource, Namespace: id.Namespace, Name: s.opts.Name,
		Objects: p.indexer.Len(), LastContact: s.progress.lastContact(),
		ReceivedBytes: s.progress.received.ByKind(), Events: p.sink.Events().ByType(),
		Handlers: s.processor.Status(queue.Handlers), Reconcilers: s.progress.reconcilerStatus(s.workStatus(p)),
	}
	s.progress.mu.Lock()
	defer s.progress.mu.Unlock()
	m.Live, m.StartedFrom, m.CaughtUpAfter, m.Resumes = s.progress.phase == PhaseLive, s.progress.startedFrom, s.progress.caughtUpIn, s.progress.resumes
	m.Relists = maps.Clone(s.progress.relists)
	for code := range s.progress.troubles {
		problems[code]++
	}
	return m
}

// A Difference has the keys, sorted, whose objects differ between cache and server.
type Difference struct {
	// Missing: only the server has the object. Surplus: only the cache has it. Different: both have an object of this name,
	// but version or content differ, or the cache could not store the server's object.
	Missing, Surplus, Different []cache.ObjectName
}

// Compare lists all objects in pages, and compares their contents with the cache. It changes nothing:
// [SharedIndexInformer.Relist] repairs. A difference counts if a second look, a second later, finds both versions
// unchanged. So a change that is under way does not count. Each page takes a token of the client's rate limiter.
// Compare returns an error if a list fails, if ctx is done, or if the informer does not serve its cache.
func (s *SharedIndexInformer) Compare(ctx context.Context) (d Difference, err error) {
	if !isClosed(s.served.done) {
		return d, errors.New("warmwatch: the informer does not serve its cache yet")
	}
	list := pager.New(checked(s.lw, s.checkRequest).ListWithContext)
	look := func() (map[string]reflector.Difference, error) {
		return s.parts.Load().sink.Compare(func(each func(runtime.Object) error) error {
			return list.EachListItem(ctx, metav1.ListOptions{}, each)
		})
	}
	found, err := look()
	if err == nil && len(found) > 0 {
		pause(ctx, compareAgain)
		var again map[string]reflector.Difference
		again, err = look()
		maps.DeleteFunc(found, func(key string, f reflector.Difference) bool { return again[key] != f })
	}
	if err != nil {
		return d, fmt.Errorf("warmwatch: compare: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		name, err := cache.ParseObjectName(key)
		if err != nil {
			return d, fmt.Errorf("warmwatch: compare: %w", err)
		}
		switch f := found[key]; {
		case !f.Stored:
			d.Missing = append(d.Missing, name)
		case !f.Listed:
			d.Surplus = append(d.Surplus, name)
		default:
			d.Different = append(d.Different, name)
		}
	}
	return d, nil
}

// compareAgain is how long a difference must last to count.
const compareAgain = time.Second
