package life_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestACrashBeforeTheInitialListIsDoneBeginsItAgain(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		release := make(chan struct{})
		d := &recorder.Recorder{During: func(event string) {
			if event == "add ns/b@2 initial" {
				<-release
			}
		}}
		if _, err := p.Informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		f.Remove("a") // It was notified of that one.
		bubble.Settle()
		crashed := p.Crash()
		q := process.Launch(t, crashed, f, nil)
		again := process.AddDurable(t, q, "d")
		q.Run()
		bubble.Settle()
		again.ExpectInAnyOrder(t, "delete ns/a@4", "add ns/b@2 initial", "add ns/c@3 initial")
		q.Stop()
		close(release)
	})
}

// goingBack returns the events that tell an older version than one before, or the same one
// again, since the handler was last notified of the whole list.
func goingBack(events []string) (bad []string) {
	known := map[string]int{}
	for _, e := range events {
		what, rest, _ := strings.Cut(e, " ")
		key, version, _ := strings.Cut(strings.TrimSuffix(rest, " initial"), "@")
		if _, after, ok := strings.Cut(version, "→"); ok {
			version = after
		}
		var rv int
		if _, err := fmt.Sscan(version, &rv); err != nil {
			return []string{e}
		}
		if rv < known[key] || rv == known[key] && what != "add" {
			bad = append(bad, fmt.Sprintf("%q after version %d", e, known[key]))
		}
		known[key] = max(known[key], rv)
	}
	return bad
}

// TestADurableHandlerThatStopsAtTheEndOfItsInitialListDoesNotGoBack: objects change
// while it gets the list, so that it has newer versions than the deltas that wait. The next handler of the name gets no
// older version.
func TestADurableHandlerThatStopsAtTheEndOfItsInitialListDoesNotGoBack(t *testing.T) { // D2
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t)
		const n = 1500
		for i := range n {
			f.Put(source.ConfigMap(fmt.Sprintf("o%04d", i), "x"))
		}
		path := testsupport.Path(t)
		p := process.Launch(t, path, f, nil).Run()
		bubble.Settle()
		first, last := make(chan struct{}), make(chan struct{})
		r := &recorder.Recorder{During: func(event string) {
			if strings.HasPrefix(event, "add ns/o0000@") {
				<-first
			}
			if strings.HasPrefix(event, fmt.Sprintf("add ns/o%04d@", n-1)) {
				<-last
			}
		}}
		registration, err := p.Informer.AddDurableEventHandler("d", r, warmwatch.DurableOptions{})
		if err != nil {
			t.Fatal(err)
		}
		bubble.Settle() // It is in its first callback.
		for range 3 {
			f.Put(source.ConfigMap("o1400", "y"))
		}
		bubble.Settle()
		close(first)
		bubble.Settle() // It is in its last one.
		if err := p.Informer.RemoveEventHandler(registration); err != nil {
			t.Fatal(err)
		}
		close(last)
		bubble.Settle()
		if _, err := p.Informer.AddDurableEventHandler("d", r, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		bubble.Settle()
		for _, bad := range goingBack(r.Take()) {
			t.Errorf("D2: %s", bad)
		}
	})
}
