package warmwatch

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

// life is one process.
type life struct {
	m                    *model
	secrets              bool // Its transform makes Secrets.
	link                 *modelLink
	cache                *Cache
	informer             *SharedIndexInformer
	durable, late, plain *teller
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
	c, err := Open(t.Context(), m.path, Options{
		LockTimeout:    time.Millisecond,
		CommitInterval: time.Duration(1+m.rng.IntN(1000)) * time.Millisecond,
		MemoryBudget:   int64(m.rng.IntN(3)-1) * 2000,
		MaxPanics:      1 + m.rng.IntN(3),
		// Now and then everything that waits is folded.
		MaxBacklogBytes: int64(m.rng.IntN(3)) * 500,
		// 1: each batch is committed before the next, so that a crash comes between any two.
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
	s.pageSize, s.relistItems = 3, 2 // So that a crash can come in between.
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
	l.durable, l.late, l.plain = m.durable.teller(l), m.late.teller(l), m.plain.teller(l)
	var err error
	if l.registered, err = s.AddDurableEventHandler(m.durable.name, l.durable); err != nil {
		m.t.Fatal(err)
	}
	if _, err := s.AddEventHandler(l.plain); err != nil {
		m.t.Fatal(err)
	}
	if l.work, err = m.shadows.add(l, 1+m.rng.IntN(10), m.rng.IntN(2) == 0); err != nil {
		m.t.Fatal(err)
	}
	for _, h := range []*teller{l.durable, l.late} {
		if m.rng.IntN(3) == 0 {
			d := time.Duration(m.rng.IntN(2000)) * time.Millisecond
			h.setSlow(func() { time.Sleep(d) }) // Virtual time.
		}
	}
	l.addLate = sync.OnceFunc(func() {
		if _, err := s.AddDurableEventHandler(m.late.name, l.late); err != nil {
			m.t.Error(err)
		}
	})
}

// addAgain removes the durable handler and adds it again, perhaps during its initial list.
func (l *life) addAgain() {
	l.durable.setAddedAgain()
	err := l.informer.RemoveEventHandler(l.registered)
	if err == nil {
		l.registered, err = l.informer.AddDurableEventHandler(l.m.durable.name, l.durable)
	}
	if err != nil {
		l.m.t.Error(err)
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

// modelCrash copies the file at a commit, once armed.
type modelCrash struct {
	l      *life
	before bool
	to     string
	done   chan struct{}

	mu       sync.Mutex
	armed    bool
	skip     int    // So many commits come before: a relist, for example, is several.
	inCommit func() // Not nil: copy at the one after them.
	told     int    // Newest version told to a durable handler by then.
}

// prepareCrash is called before the process has an informer.
func (m *model) prepareCrash(l *life) *modelCrash {
	m.stats.Sessions++
	crash := &modelCrash{
		l: l, done: make(chan struct{}), before: m.rng.IntN(2) == 0,
		to: filepath.Join(m.dir, fmt.Sprintf("cache-%d.db", m.stats.Sessions)),
	}
	l.cache.db.AddHook(&persist.Hook{BeforeCommit: func(*persist.Batch) { crash.commit(true) }, AfterCommit: func(uint64) { crash.commit(false) }})
	m.t.Logf("session %d: crash before commit: %v, file %s", m.stats.Sessions, crash.before, filepath.Base(m.path))
	return crash
}

// commit is called before and after each commit.
func (c *modelCrash) commit(before bool) {
	c.mu.Lock()
	f := c.inCommit
	switch {
	case c.before != before:
		f = nil
	case f != nil && c.skip > 0:
		c.skip, f = c.skip-1, nil
	default:
		c.inCommit = nil
	}
	c.mu.Unlock()
	if f != nil {
		f()
	}
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
	from := c.l.m.path
	c.inCommit = func() {
		defer close(c.done)
		told := c.l.die()
		testsupport.CopyFile(c.l.m.t, from, c.to)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.told = told
	}
}

// die has all that follows not happen.
func (l *life) die() (told int) {
	told = max(l.durable.die(), l.late.die())
	l.plain.die()
	l.work.die()
	return told
}
