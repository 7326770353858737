package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// panicsAt is the program whose durable handler d panics when it is notified of an event, after
// changes to three objects: "put b" or "remove b".
func panicsAt(event string, maxPanics int, changes []string) error {
	f := source.Of()
	f.Put(source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
	f.Change(changes...)
	c, err := warmwatch.Open(context.Background(), os.Getenv("WARMWATCH_TEST_FILE"), warmwatch.Options{MaxPanics: maxPanics, CommitInterval: time.Hour, FullRelistEvery: -1})
	if err != nil {
		return err
	}
	informer, err := c.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps})
	if err != nil {
		return err
	}
	_, err = informer.AddDurableEventHandler("d", &recorder.Recorder{During: func(e string) {
		if strings.HasPrefix(e, event) {
			panic("poison: " + e)
		}
	}}, warmwatch.DurableOptions{})
	if err != nil {
		return err
	}
	testsupport.EndIfHanging()
	informer.RunWithContext(context.Background())
	return errors.New("Run has returned")
}

func init() {
	programs["panics"] = func([]string) error {
		maxPanics, _ := strconv.Atoi(os.Getenv("WARMWATCH_TEST_MAX"))
		return panicsAt(os.Getenv("WARMWATCH_TEST_EVENT"), maxPanics, strings.Split(os.Getenv("WARMWATCH_TEST_CHANGES"), ","))
	}
}

// panicking runs processes that die in the same event.
func panicking(t *testing.T, processes, maxPanics int, path, event string, changes ...string) {
	t.Helper()
	for range processes {
		out := testsupport.Crash(t, "panics", "WARMWATCH_TEST_FILE="+path, "WARMWATCH_TEST_EVENT="+event,
			fmt.Sprintf("WARMWATCH_TEST_MAX=%d", maxPanics), "WARMWATCH_TEST_CHANGES="+strings.Join(changes, ","))
		if !strings.Contains(out, "poison: "+event) {
			t.Fatalf("the process did not die in %s:\n%s", event, out)
		}
	}
}

// delivered runs a process in which the durable handler does not panic, expects what it gets and how many
// notifications are skipped, and then that b is an object as any other.
func delivered(t *testing.T, path string, maxPanics int, changes, want []string, skipped int64) {
	t.Helper()
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
		f.Change(changes...)
		p := process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
			o.MaxPanics, o.FullRelistEvery = maxPanics, -1
		})
		d := process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		d.Expect(t, want...)
		if got := p.Informer.Status().Handlers[0].Skipped; got != skipped {
			t.Errorf("%d notifications were skipped, expected %d", got, skipped)
		}
		f.Put(source.ConfigMap("b", "new"))
		bubble.Settle()
		if got := d.Take(); len(got) != 1 || !strings.Contains(got[0], "ns/b") {
			t.Errorf("then it gets %q", got)
		}
	})
}

// TestWhatADurableHandlerPanicsOnInFiveProcessesIsSkipped: in its initial list, an update, a deletion.
func TestWhatADurableHandlerPanicsOnInFiveProcessesIsSkipped(t *testing.T) {
	all := []string{"add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial"}
	path := testsupport.Path(t)
	panicking(t, 4, 0, path, "add ns/b")
	delivered(t, path, 0, nil, all, 0)
	for event, c := range map[string]struct{ changes, want []string }{
		"add ns/b":    {nil, []string{all[0], all[2]}},
		"update ns/b": {[]string{"put b", "put a"}, []string{"update ns/a@1→5"}},
		"delete ns/b": {[]string{"remove b", "put a"}, []string{"update ns/a@1→5"}},
	} {
		t.Run(event, func(t *testing.T) {
			path := testsupport.Path(t)
			if c.changes != nil { // It knows the objects.
				bubble.Run(t, func(t *testing.T) {
					p := process.Launch(t, path, source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c")), nil)
					d := process.AddDurable(t, p, "d")
					p.Run()
					bubble.Settle()
					d.Expect(t, all...)
					p.Stop()
				})
			}
			panicking(t, 5, 0, path, event, c.changes...)
			delivered(t, path, 0, c.changes, c.want, 1)
		})
	}
}

// TestTwoObjectsOnWhichADurableHandlerPanics in one initial list: both are skipped in the end.
func TestTwoObjectsOnWhichADurableHandlerPanics(t *testing.T) {
	path := testsupport.Path(t)
	panicking(t, 1, 1, path, "add ns/a")
	panicking(t, 1, 1, path, "add ns/b")
	delivered(t, path, 1, nil, []string{"add ns/c@3 initial"}, 2)
}

func TestPanicsOnOneObjectThatItGetsPastDoNotCount(t *testing.T) {
	all := []string{"add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial"}
	path := testsupport.Path(t)
	panicking(t, 1, 2, path, "add ns/b")
	delivered(t, path, 2, nil, all, 0)
	path = testsupport.Path(t)
	panicking(t, 3, -1, path, "add ns/b") // Not counted.
	delivered(t, path, 1, nil, all, 0)
}
