package model_test

import (
	"context"
	"fmt"
	"runtime"

	"github.com/warmwatch/warmwatch/internal/testsupport/believer"
)

// poisoned is what handlers panic with.
type poisoned struct{ *life }

// choosePoison chooses the objects on which durable handlers panic from now on, or none.
func (m *model) choosePoison() {
	for _, b := range []*believer.Believer{m.durable, m.late} {
		if m.rng.IntN(6) > 0 {
			continue
		}
		key := ""
		if m.rng.IntN(2) == 0 {
			key = fmt.Sprintf("ns/object-%03d", m.rng.IntN(modelNames))
		}
		b.SetPoison(key)
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
