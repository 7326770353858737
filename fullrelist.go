package warmwatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/warmwatch/warmwatch/internal/reflector"
	"github.com/warmwatch/warmwatch/internal/sink"
)

// An askedRelist is a relist by content that somebody waits for.
type askedRelist struct {
	begun bool          // A relist has begun since it was asked for.
	done  chan struct{} // Closed when one is applied.
}

// relistingAsked is the newest state, because a watch cache may have lost events, too.
var relistingAsked = reflector.Relisting{Cause: CauseFullRelist, Newest: true}

var errEnded = errors.New("warmwatch: the informer has ended")

// Relist lists all objects, and compares their contents with the cache. It is the repair where the cache does not equal the
// server. It returns nil when what differs is applied, and an error if ctx is done or the informer ends before. While the
// server is away it waits. Calls at one time share one list. It may be called before the informer runs. Handlers are told
// of what differs.
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

// forceRelist has the Resumer relist. Before there is one, begin will find what is due, see dueRelists.
func (s *SharedIndexInformer) forceRelist(how reflector.Relisting) {
	if r := s.resumer.Load(); r != nil {
		r.ForceRelist(how)
	}
}

// Relist is [SharedIndexInformer.Relist] of all informers that run.
func (c *Cache) Relist(ctx context.Context) error {
	informers := c.running()
	errs := make([]error, len(informers))
	var wg sync.WaitGroup
	for i, s := range informers {
		wg.Go(func() { errs[i] = s.Relist(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
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

// dueRelists returns how to relist for what was found and asked for before there was a Resumer.
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
	return p.phase == PhaseLive && time.Since(p.lastContact) >= quietTimeOfRelist
}

// relistRegularly asks for a relist each Options.FullRelistEvery.
func (s *SharedIndexInformer) relistRegularly(ctx context.Context, k *sink.Sink) {
	every := min(s.cache.opts.FullRelistEvery, 1<<60) // 36 years, so that its parts and multiples are times.
	for every > 0 {
		last, after := k.LastFullList(), every*4/5+rand.N(every*2/5+1)
		due := time.Until(last.Add(after))
		if !pause(ctx, min(due, after)) { // The clock may have gone back.
			return
		}
		for late := time.Now().Add(every / 10); !s.progress.isQuiet() && time.Now().Before(late); {
			if !pause(ctx, quietTimeOfRelist) {
				return
			}
		}
		if k.LastFullList().Equal(last) && s.Relist(ctx) != nil {
			return
		}
	}
}

// pause waits for d, and reports false if ctx was done first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
