package warmwatch_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// rollingUpdate is a process that begins while its predecessor still has the file.
type rollingUpdate struct {
	f          *source
	path       string
	first      *process
	firstTold  *recorder
	second     *process
	secondTold *recorder
	plain      *recorder
}

func beginRollingUpdate(t *testing.T) *rollingUpdate {
	t.Helper()
	u := &rollingUpdate{f: newSource(t, configMap("a"), configMap("b"), configMap("c"), configMap("d")), path: testsupport.Path(t)}
	u.first = launch(t, u.path, u.f, nil)
	u.firstTold = addDurable(t, u.first, "d")
	addDurable(t, u.first, "of the first only")
	u.first.run()
	settle()
	u.firstTold.expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial", "add ns/d@4 initial")
	return u
}

func (u *rollingUpdate) launchSecond(t *testing.T) {
	t.Helper()
	u.second = launch(t, u.path, u.f, impatient)
	u.secondTold = addDurable(t, u.second, "d")
	u.plain, _ = add(t, u.second.informer)
}

func (u *rollingUpdate) expectMemory(t *testing.T, want bool) {
	t.Helper()
	st := u.second.cache.Status()
	if st.MemoryOnly != want || errors.Is(st.Err, warmwatch.ErrLocked) != want || st.TakenOver.IsZero() != want {
		t.Errorf("memory only: %v, taken over %v, %v", st.MemoryOnly, st.TakenOver, st.Err)
	}
	if replaced, _ := filepath.Glob(u.path + ".*"); len(replaced) != 0 {
		t.Errorf("beside the file are %q", replaced)
	}
}

// TestAFileIsTakenOverOnceItIsFree, an hour later too, with all that it owes to handlers.
func TestAFileIsTakenOverOnceItIsFree(t *testing.T) {
	for name, waits := range map[string]time.Duration{"soon": time.Second, "an hour later": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				u := beginRollingUpdate(t)
				hung := make(chan struct{})
				u.firstTold.during = func(string) { <-hung } // It does not hear of this.
				u.f.remove("b")
				settle()
				go func() { // The first process ends, but the handler does not return.
					time.Sleep(time.Minute)
					close(hung)
				}()
				crashed := u.first.crash()
				u.firstTold.during = nil
				u.first.stop()
				testsupport.CopyFile(t, crashed, u.path)       // As if it had died.
				u.first = launch(t, u.path, newSource(t), nil) // Holds the file, and does nothing else.
				u.f.remove("c")                                // While nobody watches.
				u.launchSecond(t)
				u.second.run()
				settle()
				u.secondTold.expect(t, "add ns/a@1 initial", "add ns/d@4 initial")
				u.plain.expect(t, "add ns/a@1 initial", "add ns/d@4 initial")
				u.f.put(configMap("e"))
				u.f.remove("d")
				advance(waits)
				u.expectMemory(t, true)

				if err := u.second.cache.Status().Err; !strings.Contains(err.Error(), "locked by this process") && !strings.Contains(err.Error(), u.path) {
					t.Error(err)
				}
				u.secondTold.expect(t, "add ns/e@7", "delete ns/d@8")
				u.plain.expect(t, "add ns/e@7", "delete ns/d@8")
				u.first.stop()
				advance(3 * time.Second)
				u.expectMemory(t, false)
				u.secondTold.expectInAnyOrder(t, "lost ns/b@5", "lost ns/c@3", "lost ns/d@4")
				u.plain.expectInAnyOrder(t, "lost ns/b@5", "lost ns/c@3", "lost ns/d@4")
				expectStore(t, u.second.informer, u.f)
				u.f.put(configMap("e"))
				settle()
				u.second.stop()

				p := launch(t, u.path, u.f, nil)
				d, other := addDurable(t, p, "d"), addDurable(t, p, "of the first only")
				p.run()
				settle()
				d.expect(t)
				got := other.take() // It is told everything, deletions first.
				slices.Sort(got)
				want := []string{"add ns/a@1 initial", "add ns/e@9 initial", "lost ns/b@5", "lost ns/c@3", "lost ns/d@4"}
				if !slices.Equal(got, want) {
					t.Errorf("the name that the second did not have was told %q, expected %q", got, want)
				}
				if st := p.informer.Status(); st.Relists != 0 || st.Resumes != 1 {
					t.Errorf("status %+v", st)
				}
				expectStore(t, p.informer, u.f)
			})
		})
	}
}

// TestAnInformerThatRunsAfterTheTakeoverHasItsSpaceOfTheFile, as after a restart, whether it was made
// before or after it.
func TestAnInformerThatRunsAfterTheTakeoverHasItsSpaceOfTheFile(t *testing.T) {
	for name, early := range map[string]bool{"made before": true, "made after": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				u := beginRollingUpdate(t)
				hold := launchHolder(t, u)
				if early {
					u.launchSecond(t)
				} else {
					c, err := warmwatch.Open(u.path, warmwatch.Options{LockTimeout: time.Millisecond})
					if err != nil {
						t.Fatal(err)
					}
					u.second = &process{t: t, path: u.path, cache: c}
					t.Cleanup(u.second.stop)
				}
				u.expectMemory(t, true)
				hold.stop()
				advance(3 * time.Second)
				u.expectMemory(t, false)
				if !early {
					var err error
					if u.second.informer, err = u.second.cache.NewSharedIndexInformer(u.f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps}); err != nil {
						t.Fatal(err)
					}
					u.secondTold = addDurable(t, u.second, "d")
				}
				u.f.remove("b")
				u.second.run()
				settle()
				u.secondTold.expect(t, "delete ns/b@5")
				if st := u.second.informer.Status(); st.Relists != 0 || st.Resumes != 1 {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

// launchHolder ends the first process, and has another one hold the file.
func launchHolder(t *testing.T, u *rollingUpdate) *process {
	t.Helper()
	u.first.stop()
	c, err := warmwatch.Open(u.path, warmwatch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, path: u.path, cache: c}
	t.Cleanup(p.stop)
	return p
}

// TestWhatAnInformerThatHasEndedHadInMemoryIsNotKept: its successor begins with what the file has.
func TestWhatAnInformerThatHasEndedHadInMemoryIsNotKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := beginRollingUpdate(t)
		hold := launchHolder(t, u)
		u.f.remove("b")
		u.launchSecond(t)
		u.second.run()
		settle()
		u.f.put(configMap("x"))
		settle()
		u.second.end()
		hold.stop()
		advance(3 * time.Second)
		u.expectMemory(t, false)
		var err error
		if u.second.informer, err = u.second.cache.NewSharedIndexInformer(u.f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps}); err != nil {
			t.Fatal(err)
		}
		d := addDurable(t, u.second, "d")
		u.second.run()
		settle()
		d.expect(t, "delete ns/b@5", "add ns/x@6")
		expectStore(t, u.second.informer, u.f)
	})
}

// TestAFileIsTakenOverOnlyOnceTheListIsComplete: until then what the list lacks is not known. If the
// process ends before, the file is as it was.
func TestAFileIsTakenOverOnlyOnceTheListIsComplete(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := beginRollingUpdate(t)
		hold := launchHolder(t, u)
		u.f.setDown(errUnreachable)
		u.launchSecond(t)
		u.second.run()
		hold.stop()
		settle()
		if st := u.second.cache.Status(); !st.MemoryOnly || !strings.Contains(st.Err.Error(), "no complete list yet") {
			t.Errorf("memory only: %v, %v", st.MemoryOnly, st.Err)
		}
		u.f.setDown(nil)
		u.f.remove("a")
		settle()
		u.expectMemory(t, false)
		u.secondTold.expectInAnyOrder(t, "add ns/b@2 initial", "add ns/c@3 initial", "add ns/d@4 initial", "lost ns/a@1")
	})
}

// TestAReplacedObjectOfATakenOverFileIsToldAsSuch: its deletion, and then the present one.
func TestAReplacedObjectOfATakenOverFileIsToldAsSuch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := beginRollingUpdate(t)
		hold := launchHolder(t, u)
		u.f.remove("a")
		u.f.put(configMap("a"))
		u.launchSecond(t)
		u.second.run()
		settle()
		u.secondTold.take()
		hold.stop()
		advance(3 * time.Second)
		u.secondTold.expect(t, "lost ns/a@1", "add ns/a@6")
	})
}

// TestWhatIsOnlyInMemoryWhenAFileIsTakenOverSurvivesACrash.
func TestWhatIsOnlyInMemoryWhenAFileIsTakenOverSurvivesACrash(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := beginRollingUpdate(t)
		hold := launchHolder(t, u)
		u.f.remove("b")
		u.launchSecond(t)
		u.second.run()
		settle()
		hung := make(chan struct{})
		u.secondTold.during = func(string) { <-hung }
		hold.stop()
		advance(3 * time.Second)
		u.f.put(configMap("x"))
		u.f.remove("x", "c")
		u.f.compact()
		settle()
		crashed := u.second.crash()
		close(hung)
		u.f.closeWatches()

		p := launch(t, crashed, u.f, nil)
		d := addDurable(t, p, "d")
		p.run()
		settle()
		d.expect(t, "lost ns/b@2", "add ns/x@6", "delete ns/x@7", "delete ns/c@8")
		expectStore(t, p.informer, u.f)
	})
}

// TestADeletionOfATakenOverFileThatCannotBeReadIsToldOfANameThatIsThereAgain: nobody knows whether it is
// of the same object.
func TestADeletionOfATakenOverFileThatCannotBeReadIsToldOfANameThatIsThereAgain(t *testing.T) {
	path := told(t)
	panicking(t, 2, 2, path, "delete ns/b", "remove b")
	delivered(t, path, 2, []string{"remove b"}, nil, 1, nil)
	changeValue(t, path, "aside", "\x01dns/b", func(v []byte) { v[len(v)-1] ^= 1 })
	bubble(t, func(t *testing.T) {
		u := &rollingUpdate{f: newSource(t, configMap("a"), configMap("b"), configMap("c")), path: path}
		u.f.change("remove b", "put b")
		u.first = &process{t: t, path: path, stopped: true}
		hold := launchHolder(t, u)
		u.launchSecond(t)
		u.second.run()
		settle()
		u.secondTold.expect(t, "add ns/a@1 initial", "add ns/b@5 initial", "add ns/c@3 initial")
		hold.stop()
		advance(3 * time.Second)
		u.expectMemory(t, false)
		u.secondTold.expect(t, "lost ns/b", "add ns/b@5")
	})
}
