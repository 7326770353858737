package warmwatch

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/reflector"
	"github.com/warmwatch/warmwatch/workqueue"
)

// A Phase is what an informer is doing.
type Phase string

const (
	// PhaseLoading means that Run was not called, or is reading the file.
	PhaseLoading Phase = "Loading"
	// PhaseResuming means that the watch is being resumed at the checkpoint.
	PhaseResuming Phase = "Resuming"
	// PhaseRelisting means that the cache is being compared with a list.
	PhaseRelisting Phase = "Relisting"
	// PhaseLive means that a watch is open.
	PhaseLive Phase = "Live"
	// PhaseDisconnected means that the API server has not answered yet, cannot be reached, or has closed the watch. The
	// cache is still served. Before the first list it is served if StartedFrom is "disk".
	PhaseDisconnected Phase = "Disconnected"
	// PhaseStopped means that Run has returned, or will soon.
	PhaseStopped Phase = "Stopped"
)

// A SetAside is a file that was renamed and replaced: it was damaged, foreign or of an unknown format, or three
// processes died while it was opened.
type SetAside = persist.SetAside

// Status is the state of a [Cache]. Its JSON has the names of the fields. It leaves out Err and ServerErr of the Cache
// and of informers, which are in Problems.
type Status struct {
	// Name is Options.Name, or the default.
	Name string
	// Path that was given to Open.
	Path string
	// MemoryOnly: the Cache works without a file, see Err.
	MemoryOnly bool
	// SetAside lists the files that were set aside since Open and still exist.
	SetAside []SetAside
	// Informers by identity, without those that have ended. An informer of NewInformer is listed once it runs; if it
	// works from memory, by the Go type of its objects. One of NotPersisted is listed by its name, with nothing but
	// Problems and Err.
	Informers map[string]InformerStatus
	// Unused has the informers in the file that this process has not opened, see Options.DropUnusedAfter.
	Unused []Unused
	// Workqueues of [Cache.Workqueues], also names that have none now.
	Workqueues []workqueue.Status
	// Problems has Err as a code.
	Problems []Problem
	// Err says why persistence is degraded. The informers still work.
	Err error `json:"-"`
}

// Unused is an informer of an earlier process that this process has not opened.
type Unused struct {
	Informer string // As in Status.Informers.
	// Since is when the first process without it called Open.
	Since time.Time
}

// InformerStatus is the state of a [SharedIndexInformer].
type InformerStatus struct {
	Phase Phase
	// StartedFrom is "disk" if the cache was served before the API server
	// answered, else "server". Empty before the start.
	StartedFrom string
	// Cause of the last decision to resume or relist.
	Cause Cause
	// Reason is what was found, for people. It is empty if the Cause says all.
	Reason string
	// ResourceVersion of the last applied event, bookmark or list.
	ResourceVersion string
	// LastContact is when the API server last answered a List or a watch: how old the objects may be. Before that, it
	// is when the server last confirmed the content of the file.
	LastContact time.Time `json:",omitzero"`
	// ServerErr says why the last List or watch has failed: the API server cannot be reached,
	// refuses the credentials, or does not know the resource. It is nil while a watch is open.
	ServerErr error `json:"-"`
	// Objects in the cache.
	Objects int
	// Handlers that are added now, and durable names without a handler.
	Handlers []HandlerStatus
	// Reconcilers of [SharedIndexInformer.AddReconciler], also names that have none now: how many keys wait or are
	// being reconciled, and what the reconciles do.
	Reconcilers []ReconcilerStatus
	// Relists and Resumes since the start. Attempts that failed do not count.
	// The first list of an empty cache is a relist too.
	Relists, Resumes int
	// Problems has everything that is wrong now, as codes: Err, ServerErr, and more if there is more.
	Problems []Problem
	// Err says why persistence is degraded, or which object was left out because it cannot be stored: the transform has
	// failed on it, or it is of another type. The informer still works. Err also says that the ListerWatcher asks for
	// something else than the identity (see [Cache.WrapTransport]), or why the informer works from memory (see
	// [Cache.NewInformer]). In PhaseLoading of a started informer it says why the file cannot be read, which is tried
	// again each second.
	Err error `json:"-"`
}

// HandlerStatus says what is pending for a handler.
type HandlerStatus = queue.HandlerStatus

// ReconcilerStatus says how much work waits for a reconciler, and why. Keys also counts the changes that are not in its
// queue yet, for example because the disk is full: an object with a key and a change counts twice.
type ReconcilerStatus struct {
	workqueue.Status
	// Reconciling is the object of the oldest running reconcile, and ReconcilingSince when that began; empty and zero
	// if none runs. A reconcile that ignores the end of its ctx also keeps Run from returning. Each minute the log
	// names the oldest one, if it has run for a minute.
	Reconciling      string
	ReconcilingSince time.Time `json:",omitzero"`
	// Succeeded, Failed and Requeued count the reconciles of this process that have returned nil, an error, or a time for
	// the next one.
	Succeeded, Failed, Requeued int64
	// Err is the last error of a reconcile, until one of the same object succeeds.
	Err error
}

// MarshalJSON writes the error as a string, or null if there is none.
func (st ReconcilerStatus) MarshalJSON() ([]byte, error) {
	type fields ReconcilerStatus // Without this method.
	var text *string
	if st.Err != nil {
		text = new(st.Err.Error())
	}
	return json.Marshal(struct {
		fields
		Err *string
	}{fields(st), text})
}

// An askedRelist is a relist by content that somebody waits for.
type askedRelist struct {
	begun bool          // A relist has begun since it was asked for.
	done  chan struct{} // Closed when one is applied.
}

// progress is the part of the status that has a lock of its own.
type progress struct {
	report   func(Event, error) // Adds an event to the timeline, unless it has no code. mu is not held.
	contact  atomic.Int64       // LastContact in nanoseconds since 1970; 0 if there was none.
	received request.Received
	began    time.Time // When Run was called.

	mu          sync.Mutex
	phase       Phase
	startedFrom string
	cause       Cause
	reason      string
	liveUntil   time.Time // When the last watch ended.
	caughtUpIn  time.Duration
	relists     map[Cause]int
	receivedTo  int64 // How many bytes were received before the last relist.
	resumes     int
	troubles    map[Code]trouble // What is wrong now.
	// asked is the relist that Relist has asked for, nil if none is.
	asked *askedRelist
	// relistForced says that a relist is due because of Unreadable, and rewriting that
	// a relist is running that writes every record anew.
	relistForced, rewriting bool
	reconcilers             map[string]*reconciles // By name.
}

// reconciles says what the reconciles of one reconciler do.
type reconciles struct {
	running                     map[cache.ObjectName]time.Time // When they began.
	object                      cache.ObjectName               // The object of the last one that failed.
	err                         error                          // Its error; nil if the object has succeeded since.
	succeeded, failed, requeued int64
}

func (p *progress) init(report func(Event, error)) {
	p.report, p.phase = report, PhaseLoading
	p.troubles, p.relists, p.reconcilers = map[Code]trouble{}, map[Cause]int{}, map[string]*reconciles{}
}

// started notes how the informer starts, now that the file has been read. vouchedAt is when the server last confirmed
// the content of the file.
func (p *progress) started(decision checkpoint.Decision, vouchedAt time.Time) {
	if !vouchedAt.IsZero() {
		p.contact.Store(vouchedAt.UnixNano())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase, p.startedFrom = PhaseDisconnected, "server"
	p.cause, p.reason = decision.Cause, decision.Reason
	if decision.Serve {
		p.startedFrom = "disk"
	}
}

// fromDisk returns the event of an informer that serves the stored objects.
func (p *progress) fromDisk(objects int) Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := Event{Cause: string(p.cause), Message: "from disk", Numbers: map[string]float64{"objects": float64(objects)}}
	if last := p.lastContact(); !last.IsZero() {
		e.Numbers["secondsSinceContact"] = max(0, seconds(time.Since(last)))
	}
	return e
}

// RelistBegun implements [reflector.Informer].
func (p *progress) RelistBegun(rewriting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.relistForced, p.rewriting = false, rewriting
	if p.asked != nil {
		p.asked.begun = true
	}
}

func (p *progress) setPhase(phase Phase) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.phase == PhaseLive {
		p.liveUntil = time.Now()
	}
	if p.phase != PhaseStopped {
		p.phase = phase
	}
}

// Live implements [reflector.Informer].
func (p *progress) Live() {
	p.set(CodeServerFails, nil)
	p.setPhase(PhaseLive)
}

// Resuming implements [reflector.Informer].
func (p *progress) Resuming(rv string) {
	p.mu.Lock()
	p.resumes++
	p.cause, p.reason = CauseResumed, "at resourceVersion "+rv
	p.mu.Unlock()
	p.setPhase(PhaseResuming)
	p.report(Event{Code: CodeResumed, Message: "at resourceVersion " + rv}, nil)
}

// Relisting implements [reflector.Informer].
func (p *progress) Relisting(how reflector.Relisting) {
	p.mu.Lock()
	p.cause, p.reason, p.receivedTo = how.Cause, how.Reason, p.received.Total()
	p.mu.Unlock()
	p.setPhase(PhaseRelisting)
}

// Contact implements [reflector.Informer].
func (p *progress) Contact() { p.contact.Store(time.Now().UnixNano()) }

func (p *progress) lastContact() time.Time {
	if at := p.contact.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

func (p *progress) reconcileBegun(name string, object cache.ObjectName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reconcilers[name] == nil {
		p.reconcilers[name] = &reconciles{running: map[cache.ObjectName]time.Time{}}
	}
	p.reconcilers[name].running[object] = time.Now()
}

func (p *progress) reconcileReturned(name string, object cache.ObjectName, after time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.reconcilers[name]
	delete(r.running, object)
	switch {
	case err != nil:
		r.failed, r.object, r.err = r.failed+1, object, err
		return
	case after > 0:
		r.requeued++
	default:
		r.succeeded++
	}
	if r.object == object {
		r.err = nil
	}
}

// reconcilerEnded forgets the failed reconcile of a reconciler that has ended: the next one of the name may be another.
func (p *progress) reconcilerEnded(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.reconcilers[name]; r != nil {
		r.err = nil
	}
}

// reconcilerStatus completes the states of the workqueues of all reconcilers.
func (p *progress) reconcilerStatus(queues []workqueue.Status) []ReconcilerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []ReconcilerStatus
	for _, queue := range queues {
		st := ReconcilerStatus{Status: queue}
		if r := p.reconcilers[queue.Name]; r != nil {
			st.Succeeded, st.Failed, st.Requeued = r.succeeded, r.failed, r.requeued
			for object, since := range r.running {
				if st.Reconciling == "" || since.Before(st.ReconcilingSince) {
					st.Reconciling, st.ReconcilingSince = object.String(), since
				}
			}
			if r.err != nil {
				st.Err = fmt.Errorf("reconcile %s: %w", r.object, r.err)
			}
		}
		all = append(all, st)
	}
	return all
}

// trouble is a problem of an informer.
type trouble struct {
	err   error
	since time.Time
}

// setLocked notes that there is a problem, or none if err is nil. If that is new, it returns an event to report.
func (p *progress) setLocked(code Code, err error) (e Event) {
	before, was := p.troubles[code]
	switch {
	case err != nil && was:
		p.troubles[code] = trouble{err, before.since}
	case err != nil:
		p.troubles[code] = trouble{err, time.Now()}
		e.Code = code
	case was:
		delete(p.troubles, code)
		e = Event{Code: CodeRecovered, Cause: string(code), Numbers: map[string]float64{"seconds": seconds(time.Since(before.since))}}
	}
	return e
}

// set notes that there is a problem, or none if err is nil, and reports that if it is new.
func (p *progress) set(code Code, err error) {
	p.mu.Lock()
	e := p.setLocked(code, err)
	p.mu.Unlock()
	p.report(e, err)
}

// problemsLocked returns the present problems, and the first error among them that is not the server's.
func (p *progress) problemsLocked() (all []Problem, first error) {
	for _, code := range informerCodes {
		if t, is := p.troubles[code]; is {
			all = append(all, Problem{code, t.err.Error(), t.since})
			if first == nil && code != CodeServerFails {
				first = t.err
			}
		}
	}
	return all, first
}
