package warmwatch

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// poisoned is what handlers panic with.
type poisoned struct{ *teller }

// choosePoison chooses the objects on which durable handlers panic from now on, or none.
func (m *model) choosePoison() {
	for _, b := range []*believer{m.durable, m.late} {
		if m.rng.IntN(6) > 0 {
			continue
		}
		key := ""
		if m.rng.IntN(2) == 0 {
			key = fmt.Sprintf("ns/object-%03d", m.rng.IntN(modelNames))
		}
		b.setPoison(key)
	}
}

// keysAside returns what is set aside for a handler.
func keysAside(informer *SharedIndexInformer, handler string) (keys []string) {
	for _, h := range informer.Status().Handlers {
		if h.Name == handler {
			keys = append(keys, h.SetAside...)
		}
	}
	return keys
}

// setAside returns what is set aside for any handler.
func (m *model) setAside(l *life) (keys []string) {
	for _, b := range []*believer{m.durable, m.late} {
		keys = append(keys, keysAside(l.informer, b.name)...)
	}
	return keys
}

// redeliver has the handlers panic no more, and told of what was set aside.
func (m *model) redeliver(l *life) {
	m.stats.RedeliveredAside += len(m.setAside(l))
	for _, b := range []*believer{m.durable, m.late} {
		b.setPoison("")
		if err := l.informer.RedeliverSetAside(b.name); err != nil {
			m.t.Error(err)
		}
	}
	time.Sleep(time.Minute) // Virtual time.
	if keys := m.setAside(l); len(keys) > 0 {
		m.t.Errorf("after the redelivery %q are set aside", keys)
	}
}

// diesOfPanic is called when a handler has panicked, where the program would end. The process lives
// until its next commit, and the handler is not called any more.
func diesOfPanic(_ context.Context, r any) {
	if p, ok := r.(poisoned); ok {
		l := p.life
		l.m.server.Advance(1) // So that there will be a commit.
		l.crash.armAfter(0)
		<-l.over
		runtime.Goexit()
	}
}
