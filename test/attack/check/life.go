package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch"
)

// A Life is a program that opens a file, uses it for some sessions, and has
// accidents. Its input is JSON.
type Life struct {
	// History is the seed of the server, Seed of what happens.
	History, Seed uint64
	// Path of the file; Behind is where it can be read without being noticed;
	// Marks is where marks are written to.
	Path, Behind, Marks string
	Sessions            int
	// Errors are to be expected, of Close too.
	Errors bool
	// World is where it begins.
	World *World
}

// RunLife is the program, for [Main]: it reads its Life from standard input.
func RunLife(t *testing.T) {
	var l Life
	if err := json.NewDecoder(os.Stdin).Decode(&l); err != nil {
		t.Fatal(err)
	}
	marks, err := os.OpenFile(l.Marks, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer marks.Close()
	synctest.Test(t, func(*testing.T) {
		m := NewMarker(l.World, marks)
		l.run(m)
		m.Mark(Mark{Kind: Finished})
	})
}

func (l *Life) run(m *Marker) {
	rng := rand.New(rand.NewPCG(l.Seed, 3))
	s := NewServer(l.History, l.World.Version)
	if l.World.Version == 0 {
		Advance(s, m, 2*names)
	}
	for i := range l.Sessions {
		Advance(s, m, rng.IntN(8))
		if rng.IntN(3) == 0 {
			Compact(s, m)
		}
		b, err := Begin(s, m, Options{
			Path: l.Path, Behind: l.Behind, Slow: time.Duration(max(0, rng.IntN(300)-200)) * time.Millisecond,
			Cache: warmwatch.Options{
				CommitInterval: time.Duration(1+rng.IntN(1000)) * time.Millisecond,
				MemoryBudget:   int64(rng.IntN(3)-1) * 10_000,
			},
		})
		if err != nil {
			m.Violation("open: %v", err)
			return
		}
		l.disturb(rng, b)
		if rng.IntN(2) == 0 {
			l.join(rng, b, fmt.Sprintf("walker-%d-%d", l.Seed, i))
		}
		if rng.IntN(2) == 0 || i == l.Sessions-1 {
			b.Quiet()
		}
		end := b.Stop
		if rng.IntN(3) == 0 {
			end = b.Abandon
		}
		if err := end(); err != nil && !l.Errors {
			m.Violation("close: %v", err)
		}
	}
}

// disturb lets a while pass, with changes and accidents on the server's side.
func (l *Life) disturb(rng *rand.Rand, b *Session) {
	for range 5 + rng.IntN(12) {
		switch rng.IntN(14) {
		case 0:
			b.Server.Disconnect()
		case 1:
			Compact(b.Server, b.Marker)
			b.Server.Disconnect()
		case 2:
			b.Server.Bookmark()
		case 3:
			b.Server.FailPages(rng.IntN(3))
		case 4, 5:
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond) // Of the bubble.
		case 6:
			b.Server.SetDown(errors.New("dial tcp: connect: no route to host"))
			time.Sleep(time.Duration(rng.IntN(5)) * time.Second)
			b.Server.SetDown(nil)
		default:
			b.Advance(1 + rng.IntN(5))
			time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
		}
	}
}

// join has a durable handler be notified of everything, while changes are committed.
func (l *Life) join(rng *rand.Rand, b *Session, name string) {
	joinAt := rng.IntN(10)
	for i := range 10 {
		b.Advance(1)
		if i == joinAt {
			if err := b.Join(name); err != nil && (!l.Errors || !b.Marker.World().MemoryOnly) {
				b.Marker.Violation("join: %v", err)
			}
		}
		time.Sleep(time.Duration(8+rng.IntN(8)) * time.Millisecond) // About warmwatch.Options.DurableDelay.
	}
}
