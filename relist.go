package warmwatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/reflector"
)

// relistingOf returns how to relist, nil if the watch is resumed.
func relistingOf(d checkpoint.Decision) *reflector.Relisting {
	if d.Cause == CauseResumed {
		return nil
	}
	return &reflector.Relisting{Cause: d.Cause, Reason: d.Reason, Rewrite: d.Rewrite, Newest: d.Newest}
}

// relistingAsked asks for the newest list, because a watch cache may have lost events, too.
var relistingAsked = reflector.Relisting{Cause: CauseFullRelist, Newest: true}

var errEnded = errors.New("warmwatch: the informer has ended")

// Relist lists all objects, compares their contents with the cache, applies the differences, and notifies handlers of
// them. It repairs a cache that does not equal the server. It returns nil when this is done, and an error if ctx is
// done or the informer ends before. While the server is away it waits. Concurrent calls share one list. It may be
// called before the informer runs.
func (s *SharedIndexInformer) Relist(ctx context.Context) error {
	if s.IsStopped() {
		return errEnded
	}
	asked, first := s.progress.askRelist()
	if first {
		s.forceRelist(relistingAsked)
	}
	select {
	case <-asked.done:
		return nil
	case <-s.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// forceRelist makes the Resumer relist. If there is none yet, begin finds the due relist, see dueRelists.
func (s *SharedIndexInformer) forceRelist(how reflector.Relisting) {
	if r := s.resumer.Load(); r != nil {
		r.ForceRelist(how)
	}
}

// askRelist returns the relist that is asked for, and whether this call is the first to do so.
func (p *progress) askRelist() (asked *askedRelist, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first = p.asked == nil; first {
		p.asked = &askedRelist{done: make(chan struct{})}
	}
	return p.asked, first
}

// dueRelists returns the relists that became due before there was a Resumer.
func (p *progress) dueRelists() (due []reflector.Relisting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, damaged := p.troubles[CodeUnreadable]; damaged {
		due = append(due, relistingDamaged(t.err))
	}
	if p.asked != nil {
		due = append(due, relistingAsked)
	}
	return due
}

// quietTimeOfRelist is how long nothing comes before a regular relist.
const quietTimeOfRelist = time.Second

// isQuiet reports whether a watch is open that has brought nothing for a while.
func (p *progress) isQuiet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase == PhaseLive && time.Since(p.lastContact()) >= quietTimeOfRelist
}

// relistRegularly asks for a relist each Options.FullRelistEvery.
func (s *SharedIndexInformer) relistRegularly(ctx context.Context, k *reflector.Sink) {
	every := min(s.shared.opts.FullRelistEvery, 1<<60) // 36 years, so that its parts and multiples are times.
	for every > 0 {
		last, after := k.Checkpoint().LastFullList, every*4/5+rand.N(every*2/5+1)
		due := time.Until(last.Add(after))
		if !pause(ctx, min(due, after)) { // The clock may have gone back.
			return
		}
		for late := time.Now().Add(every / 10); !s.progress.isQuiet() && time.Now().Before(late); {
			if !pause(ctx, quietTimeOfRelist) {
				return
			}
		}
		if k.Checkpoint().LastFullList.Equal(last) && s.Relist(ctx) != nil {
			return
		}
	}
}

// corrupt is called when a record cannot be read. It schedules a relist that writes
// every record anew.
func (s *SharedIndexInformer) corrupt(err error) { s.damaged(err, false) }

// fileDamaged is called when a part of the file cannot be read any more. Then every informer in the file lists, and
// writes every record anew.
func (c *shared) fileDamaged(err error) {
	for _, s := range c.all() {
		if !s.place.Load().fromMemory() {
			s.damaged(err, true)
		}
	}
}

func (s *SharedIndexInformer) damaged(err error, wholeFile bool) {
	p := &s.progress
	p.mu.Lock()
	e := p.setLocked(CodeUnreadable, err)
	// The relist that is due, or running, rewrites a single bad record as well.
	force := wholeFile || !p.relistForced && !p.rewriting
	p.relistForced = p.relistForced || force
	p.mu.Unlock()
	p.report(e, err)
	if force {
		s.forceRelist(relistingDamaged(err))
	}
}

// relistingDamaged writes all anew, because something that is stored could not be read.
func relistingDamaged(err error) reflector.Relisting {
	return reflector.Relisting{Cause: CauseDamaged, Reason: err.Error(), Rewrite: true}
}

const (
	// recentAnswer is how old the server's last answer may be without an open watch, so that the server counts as
	// heard.
	recentAnswer = 10 * time.Second
	repairPoll   = 20 * time.Millisecond
)

// awaitRepair waits until a relist has repaired the unreadable objects, and returns true then. It returns false once
// the server is not heard, or after a positive limit.
func (s *SharedIndexInformer) awaitRepair(limit time.Duration) bool {
	for begin := time.Now(); limit <= 0 || time.Since(begin) < limit; time.Sleep(repairPoll) {
		switch repaired, heard := s.progress.repair(); {
		case repaired:
			return true
		case !heard:
			return false
		}
	}
	return false
}

// repair reports whether all stored objects can be read, and whether the server is heard, so that they soon can.
func (p *progress) repair() (repaired, heard bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	recent := time.Since(p.lastContact()) < recentAnswer || time.Since(p.liveUntil) < recentAnswer
	return p.troubles[CodeUnreadable].err == nil, p.phase == PhaseLive || recent && p.phase != PhaseStopped
}

// caughtUp is called when the resumed watch has caught up with the server, and after each relist.
func (s *SharedIndexInformer) caughtUp() {
	if s.caught.set() {
		s.progress.caughtUp()
	}
	s.synced.set()
}

// caughtUp is called the first time.
func (p *progress) caughtUp() {
	p.mu.Lock()
	p.caughtUpIn = max(time.Since(p.began), 1)
	e := Event{Code: CodeCaughtUp, Numbers: map[string]float64{"seconds": seconds(p.caughtUpIn)}}
	p.mu.Unlock()
	p.report(e, nil)
}

// serve makes the store readable, and reports e, the first time as CodeServed.
func (s *SharedIndexInformer) serve(e Event) {
	s.parts.Load().indexer.Hide(false)
	if s.served.set() {
		e.Code = CodeServed
	}
	s.progress.report(e, nil)
}

// observer implements [reflector.Informer], together with the methods of progress.
type observer struct {
	*progress
	informer *SharedIndexInformer
}

// CaughtUp implements [reflector.Informer].
func (o observer) CaughtUp() { o.informer.caughtUp() }

// RelistEnded implements [reflector.Informer].
func (o observer) RelistEnded(complete bool, refused error) (whole bool) {
	o.mu.Lock()
	o.rewriting, whole = false, !o.relistForced
	var left, repaired Event
	if complete {
		left = o.setLocked(CodeRefused, refused)
	}
	if complete && whole {
		repaired = o.setLocked(CodeUnreadable, nil)
	}
	o.mu.Unlock()
	o.report(left, refused)
	o.report(repaired, nil)
	return whole
}

// Relisted implements [reflector.Informer].
func (o observer) Relisted(r reflector.Relisted) {
	o.mu.Lock()
	o.relists[o.cause]++
	e := Event{Code: CodeRelisted, Cause: string(o.cause), Message: o.reason, Numbers: map[string]float64{
		"objects": float64(r.Objects), "added": float64(r.Added), "updated": float64(r.Updated), "deleted": float64(r.Deleted),
		"seconds": seconds(r.Took), "receivedBytes": float64(o.received.Total() - o.receivedTo),
	}}
	if r.Full && o.asked != nil && o.asked.begun {
		close(o.asked.done)
		o.asked = nil
	}
	o.mu.Unlock()
	o.informer.serve(e)
	o.informer.caughtUp()
}

// Refused implements [reflector.Informer].
func (o observer) Refused(err error) { o.set(CodeRefused, err) }

// Disconnected implements [reflector.Informer].
func (o observer) Disconnected(err error) { o.informer.disconnected(err) }

// disconnected is called when a List or a watch has failed or ended. It is no failure that a watch expires, or ends for
// a relist or with the run.
func (s *SharedIndexInformer) disconnected(err error) {
	if err != nil && !s.isEnding() && !apierrors.IsResourceExpired(err) {
		s.progress.set(CodeServerFails, err)
	}
	s.progress.setPhase(PhaseDisconnected)
}

// isEnding reports whether the run has begun, and is about to end.
func (s *SharedIndexInformer) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctx != nil && s.ctx.Err() != nil
}

// Resync implements [reflector.Informer].
func (o observer) Resync() { o.informer.processor.Resync() }

// HasSyncedChecker implements [reflector.Informer].
func (o observer) HasSyncedChecker() cache.DoneChecker { return o.informer.HasSyncedChecker() }
