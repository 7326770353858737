package warmwatch

import (
	"time"

	"github.com/warmwatch/warmwatch/persist"
)

// Metrics are numbers of a [Cache] for monitoring. Counters count since Open. Times are points in time, not ages; they
// are zero if there is none.
type Metrics struct {
	Name string
	// Persistent: changes are written to the file. It is false if the Cache works from memory, or if the file is only
	// read.
	Persistent bool
	// Degraded counts the present problems by code: 1 for those of the file, the number of informers for the others.
	Degraded map[Code]int
	File     persist.Metrics
	// Informers that run, in the order of their spaces. Two of them may differ in nothing but what is left out here:
	// form and selectors.
	Informers []InformerMetrics
}

// InformerMetrics are numbers of a [SharedIndexInformer].
type InformerMetrics struct {
	Group, Version, Resource, Namespace string
	Name                                string // InformerOptions.Name.
	Objects                             int
	// Live: a watch is open.
	Live        bool
	LastContact time.Time
	// StartedFrom is as in [InformerStatus]. CaughtUpAfter is the time from Run to CaughtUp, 0 before.
	StartedFrom   string
	CaughtUpAfter time.Duration
	Resumes       int
	Relists       map[Cause]int
	// ReceivedBytes counts the bodies of the server's answers by kind of request: list, metadata, objects, watch,
	// question, other. A compressed answer counts as it is after decompression. It is 0 where the transport is not wrapped.
	ReceivedBytes map[string]int64
	// Events counts the events of the watch that were applied: added, updated, deleted, bookmark.
	Events      map[string]int64
	Handlers    []HandlerMetrics
	Reconcilers []ReconcilerMetrics
}

// HandlerMetrics are numbers of a handler, or of a durable name without a handler.
type HandlerMetrics struct {
	Name         string // As in [HandlerStatus].
	Undelivered  int
	BacklogBytes int64
	// OldestUndelivered is about when the oldest pending delta was applied, or when it was read from the file.
	OldestUndelivered time.Time
	// CallbackSince is when the running callback began.
	CallbackSince time.Time
	// Restarts counts how often the handler has started over, by cause: New, Epoch, Backlog, Damaged, TransformVersion.
	Restarts map[string]int64
	Skipped  int64
}

// ReconcilerMetrics are numbers of a [Reconciler], or of a name without one.
type ReconcilerMetrics struct {
	Name string
	// Keys that wait, also for later, or are being reconciled.
	Keys int
	// Succeeded, Failed and Requeued count the reconciles that have returned nil, an error, or a time for the next one.
	Succeeded, Failed, Requeued int64
	// ReconcilingSince is when the oldest running reconcile began.
	ReconcilingSince time.Time
}

// Metrics returns the present numbers. It takes no lock that an event waits for.
func (c *Cache) Metrics() Metrics { return Metrics{Name: c.opts.Name} }

// An Event is an entry of the timeline: something that has happened in the life of a Cache. A problem that begins is an
// event with its code, and its end is [CodeRecovered].
type Event struct {
	Time time.Time
	Code Code
	// Informer as in Status; empty for an event of the file. Handler is the name of a handler or a reconciler.
	Informer string `json:",omitempty"`
	Handler  string `json:",omitempty"`
	Cause    Cause  `json:",omitempty"`
	// Message is for people.
	Message string `json:",omitempty"`
	// Numbers of the event, such as objects, added, updated, deleted, seconds.
	Numbers map[string]float64 `json:",omitempty"`
	// Times is how often the event has happened within a minute of the one before; the entry is the last of them.
	Times int `json:",omitempty"`
}

// The codes of events that are no problems.
const (
	// CodeOpened means: Open has opened the file.
	CodeOpened Code = "Opened"
	// CodeSetAside means: Open has set a bad file aside and begun a new one.
	CodeSetAside Code = "SetAside"
	// CodeServed means: an informer serves its cache, from disk or from the server.
	CodeServed Code = "Served"
	// CodeResumed means: the watch goes on at the checkpoint.
	CodeResumed Code = "Resumed"
	// CodeCaughtUp means: the cache has caught up with the server.
	CodeCaughtUp Code = "CaughtUp"
	// CodeRelisted means: the cache was compared with a list.
	CodeRelisted Code = "Relisted"
	// CodeRecovered means: a problem has ended. The event's Message is the code of the problem.
	CodeRecovered Code = "Recovered"
	// CodeStartedOver means: a durable handler starts over.
	CodeStartedOver Code = "StartedOver"
	// CodeSkipped means: a durable handler has panicked on a change in Options.MaxPanics processes, and the change was
	// skipped.
	CodeSkipped Code = "Skipped"
	// CodeDropped means: the data of an informer that nobody has opened for Options.DropUnusedAfter were removed.
	CodeDropped Code = "Dropped"
	// CodeClosed means: the Cache was closed.
	CodeClosed Code = "Closed"
)

// Timeline returns the last 200 events, oldest first, also those of earlier processes that are in the file.
func (c *Cache) Timeline() []Event { return nil }
