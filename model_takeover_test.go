package warmwatch

import (
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// holder has the file when a process begins: it is the process before, or does nothing else.
type holder struct {
	m     *model
	idle  *Cache
	life  *life
	hung  chan struct{} // Not nil: a handler of the process before waits for it to be closed.
	ended bool
}

func (h *holder) begin() {
	m := h.m
	m.stats.Held++
	if m.rng.IntN(3) == 0 {
		var err error
		if h.idle, err = Open(m.path, Options{}); err != nil {
			m.t.Fatal(err)
		}
		return
	}
	h.life = m.launch(false)
	m.disturb(h.life, &holder{m: m, ended: true})
	if m.rng.IntN(2) == 0 {
		h.hung = make(chan struct{})
		h.life.durable.setSlow(func() { <-h.hung })
	}
}

// third begins a process that comes between the one that had the file and the one that waits for it, if it comes
// before that one.
func (m *model) third(waits *life) *holder {
	h := &holder{m: m, ended: true}
	if waits.crash.isArmed() {
		return h
	}
	m.beside = true
	defer func() { m.beside = false }()
	if h.life = m.launch(false); h.life == nil {
		return h
	}
	m.stats.Third++
	m.disturb(h.life, h)
	h.ended = false
	return h
}

// succeededBy is called when the process that waits for the file has begun. What a reconciler would
// still do in the process before, it might do after its successor has done it anew.
func (h *holder) succeededBy(l *life) {
	if h.ended {
		return
	}
	if !l.memoryOnly() {
		h.m.t.Error("P5: the file has two processes")
	}
	if h.life != nil {
		h.life.work.fail()
		if h.life.secrets != l.secrets {
			h.m.shadows.forgetObjects()
		}
		for _, b := range []*teller{h.life.durable, h.life.late, h.life.plain} {
			b.notAlone()
		}
	}
}

// end ends it in order, or by a crash.
func (h *holder) end(l *life) {
	if h.ended {
		return
	}
	h.ended = true
	m := h.m
	if h.idle != nil {
		if err := h.idle.Close(); err != nil {
			m.t.Fatal(err)
		}
		m.damageBetween(l)
		return
	}
	if m.rng.IntN(2) == 0 {
		h.life.crash.arm()
	}
	killed := h.life.crash.isArmed()
	if killed {
		h.life.crash.await()
	}
	if h.hung != nil {
		close(h.hung)
	}
	h.life.stop()
	l.cache.opening.Lock() // So that the file is not taken over as it is before it is put back.
	h.life.close()
	waited := l.memoryOnly()
	if killed {
		testsupport.CopyFile(m.t, h.life.crash.to, m.path) // What it did since it was killed did not happen.
	}
	l.cache.opening.Unlock()
	if !killed {
		m.damageBetween(l)
		return
	}
	if !waited {
		m.t.Fatal("the file was taken over before its holder was dead")
	}
	left := m.inspect(h.life.crash.to, h.life.crash.told)
	m.plain.forget(left, l.plain)
	m.shadows.restart(left.rv, l.work)
	m.checkTypes(left, l)
	m.damageBetween(l)
}

// damageBetween damages the file, now and then and once in a session, that a process is about to take over.
func (m *model) damageBetween(l *life) {
	if m.rng.IntN(4) > 0 || m.damagedBetween || m.damaged || l.isOver() {
		return
	}
	m.damagedBetween = true
	m.shadows.forgetObjects() // A deletion may have lost its object.
	m.damage("objects", "deleted", "work")
}

// hasFile waits until a process has the file. It reports false if it is about to crash.
func (m *model) hasFile(l *life) bool {
	for range 300 {
		if l.crash.isArmed() || !l.memoryOnly() {
			return !l.crash.isArmed()
		}
		time.Sleep(time.Second) // Virtual time.
	}
	m.t.Errorf("the file is not taken over: %+v", l.cache.Status())
	return false
}

// dieInMemory ends a process that has not taken over the file.
func (m *model) dieInMemory(l *life, h *holder) {
	synctest.Wait() // Nobody writes to the file.
	path := m.path
	if h.ended {
		path = l.crash.to
		testsupport.CopyFile(m.t, m.path, path)
	}
	l.die()
	l.crash.disarm()
	l.end()
	h.end(l)
	m.afterwards(l, path)
}

// forgetMemory is called when a process has ended that began without a file.
func (m *model) forgetMemory(l *life, left remains) {
	stored := l.crash.onFile.Load()
	for _, b := range []*believer{m.durable, m.late, m.plain} {
		b.forgetMemory(stored)
	}
	m.shadows.forgetMemory(stored, left)
}
