package model_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/believer"
)

// life is one process.
type life struct {
	m                    *model
	secrets              bool // Its transform makes Secrets.
	link                 *modelLink
	cache                *warmwatch.Cache
	informer             *warmwatch.SharedIndexInformer
	durable, late, plain *believer.Handler
	work                 *shadower
	addLate              func() // Once.
	crash                *modelCrash
	cancel               func()
	registered           cache.ResourceEventHandlerRegistration // Of durable.
	done                 chan struct{}                          // Run has returned.
	over                 chan struct{}                          // The process has died, or is about to end.
}

// launch begins a process.
func (m *model) launch() *life {
	t := m.t
	l := &life{m: m, link: newModelLink(m.server), done: make(chan struct{}), over: make(chan struct{})}
	m.chooseType(l)
	c, err := warmwatch.Open(t.Context(), m.path, warmwatch.Options{
		LockTimeout:     time.Millisecond,
		CommitInterval:  time.Duration(1+m.rng.IntN(1000)) * time.Millisecond,
		MemoryBudget:    int64(m.rng.IntN(3)-1) * 2000,
		MaxPanics:       1 + m.rng.IntN(3),
		MaxBacklogBytes: m.backlog(),
		// 1: a relist applies each object by itself, and each batch is committed before the next, so that a crash comes
		// between any two.
		MaxPendingBytes: int64(m.rng.IntN(2)),
	})
	if err != nil {
		t.Fatal(err)
	}
	l.cache = c
	l.crash = m.prepareCrash(l)
	s, err := l.newInformer()
	if err != nil {
		t.Fatal(err)
	}
	l.informer = s
	l.addHandlers()
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(t.Context())
	go func() {
		defer close(l.done)
		s.RunWithContext(ctx)
	}()
	return l
}

func (l *life) addHandlers() {
	m, s := l.m, l.informer
	o := believer.Options{ConfigMap: l.configMap, Lossy: m.lossy, Poison: poisoned{l}}
	l.durable, l.late, l.plain = m.durable.Handler(o), m.late.Handler(o), m.plain.Handler(o)
	var err error
	if l.registered, err = s.AddDurableEventHandler(m.durable.Name, l.durable, m.durableOptions(m.durable)); err != nil {
		m.t.Fatal(err)
	}
	if _, err := s.AddEventHandler(l.plain); err != nil {
		m.t.Fatal(err)
	}
	if l.work, err = m.shadows.add(l, 1+m.rng.IntN(10), m.rng.IntN(2) == 0); err != nil {
		m.t.Fatal(err)
	}
	for _, h := range []*believer.Handler{l.durable, l.late} {
		if m.rng.IntN(3) == 0 {
			d := time.Duration(m.rng.IntN(2000)) * time.Millisecond
			h.SetSlow(func() { time.Sleep(d) }) // Virtual time.
		}
	}
	l.addLate = sync.OnceFunc(func() {
		if _, err := s.AddDurableEventHandler(m.late.Name, l.late, m.durableOptions(m.late)); err != nil {
			m.t.Error(err)
		}
	})
}

// addAgain removes the durable handler and adds it again, perhaps during its initial list, once its callback has
// returned.
func (l *life) addAgain() {
	l.durable.SetAddedAgain()
	if err := l.informer.RemoveEventHandler(l.registered); err != nil {
		l.m.t.Error(err)
	}
	for !l.crash.isArmed() { // Else it may have panicked, and never returns.
		registered, err := l.informer.AddDurableEventHandler(l.m.durable.Name, l.durable, l.m.durableOptions(l.m.durable))
		if err == nil {
			l.registered = registered
			return
		}
		if !errors.Is(err, warmwatch.ErrInUse) {
			l.m.t.Error(err)
			return
		}
		time.Sleep(10 * time.Millisecond) // Virtual time.
	}
}

// end is called once the process is dead, or to end it in order.
func (l *life) end() {
	l.stop()
	l.close()
}

func (l *life) stop() {
	close(l.over)
	l.cancel()
	<-l.done
}

func (l *life) close() {
	if err := l.cache.Close(); err != nil {
		l.m.t.Fatalf("close: %v", err)
	}
}

// backlog returns MaxBacklogBytes. Where nothing is to be lost, it is larger than all that ever waits.
func (m *model) backlog() int64 {
	if !m.lossy {
		return -1
	}
	return int64(1+m.rng.IntN(3)) * 1000
}

// durableOptions has a handler say what it knows, where deletions may be lost.
func (m *model) durableOptions(b *believer.Believer) (o warmwatch.DurableOptions) {
	if m.lossy {
		o.Known = b.Known
	}
	return o
}

// modelCrash copies the file a while after a commit, once armed.
type modelCrash struct {
	l    *life
	to   string
	done chan struct{}

	mu        sync.Mutex
	armed     bool
	skip      int    // So many commits come before: a relist, for example, is several.
	inCommit  func() // Not nil: copy after them.
	delivered int    // Newest version delivered to a durable handler by then.
}

// prepareCrash is called before the process has an informer.
func (m *model) prepareCrash(l *life) *modelCrash {
	m.stats.Sessions++
	crash := &modelCrash{
		l: l, done: make(chan struct{}),
		to: filepath.Join(m.dir, fmt.Sprintf("cache-%d.db", m.stats.Sessions)),
	}
	pause := time.Duration(m.rng.IntN(2)*m.rng.IntN(300)) * time.Millisecond
	testsupport.EachCommit(m.t, func() {
		go func() { // The DB does not wait for it.
			if f := crash.due(); f != nil {
				time.Sleep(pause) // Virtual time.
				f()
			}
		}()
	})
	m.t.Logf("session %d: crash %v after a commit, file %s", m.stats.Sessions, pause, filepath.Base(m.path))
	return crash
}

// due is called at each commit.
func (c *modelCrash) due() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.inCommit
	if f != nil && c.skip > 0 {
		c.skip--
		return nil
	}
	c.inCommit = nil
	return f
}

// happened waits for the crash, but not for long.
func (c *modelCrash) happened(within time.Duration) bool {
	select {
	case <-c.done:
		return true
	case <-time.After(within): // Virtual time.
		return false
	}
}

// await waits for the crash.
func (c *modelCrash) await() {
	for n := 0; !c.happened(time.Second); n++ {
		c.l.m.server.Advance(1) // So that there will be a commit.
		if n == 600 {
			c.l.m.t.Fatalf("no commit: %+v", c.l.cache.Status())
		}
	}
}

func (c *modelCrash) isArmed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.armed
}

func (c *modelCrash) arm() {
	if !c.isArmed() {
		c.l.m.server.Advance(1) // So that there will be a commit.
		c.armAfter(max(0, c.l.m.rng.IntN(12)-6))
	}
}

// armAfter may be called by any goroutine.
func (c *modelCrash) armAfter(commits int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.armed {
		return
	}
	c.armed, c.skip = true, commits
	c.inCommit = func() {
		defer close(c.done)
		delivered, unlock := c.l.die()
		defer unlock()
		testsupport.CopyFile(c.l.m.t, c.l.m.path, c.to)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.delivered = delivered
	}
}

// die has all that follows not happen. Until unlock is called nothing returns, so that nothing is acknowledged that did
// not happen.
func (l *life) die() (delivered int, unlock func()) {
	durable, unlockDurable := l.durable.Die()
	late, unlockLate := l.late.Die()
	_, unlockPlain := l.plain.Die()
	unlockWork := l.work.die()
	return max(durable, late), func() {
		unlockDurable()
		unlockLate()
		unlockPlain()
		unlockWork()
	}
}
