package warmwatch_test

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/workqueue"
)

// TestADiskThatComesBackTakesNothingAway: the file cannot be read for a moment, so that the Cache works
// from memory, and is sound again before the server has answered.
func TestADiskThatComesBackTakesNothingAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
		p := launch(t, testsupport.Path(t), f, nil)
		d, w := addDurable(t, p, "d"), addReconciler(t, p, 1)
		p.run()
		settle()
		d.expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
		w.expect(t, "ns/a@1", "ns/b@2", "ns/c@3")
		f.setDown(errUnreachable)
		f.remove("b")

		inTheWay := p.path + ".finished" // The file cannot be replaced either.
		if err := os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
		metas := make([]byte, 16<<10)
		sound := exchange(t, p.path, metas)
		addItems(t, p, "q", "x") // Something to write.
		advance(time.Second)
		if st := p.cache.Status(); !st.MemoryOnly {
			t.Fatalf("the file is in use: %v", st.Err)
		}
		exchange(t, p.path, sound)
		advance(2 * time.Minute)
		if st := p.cache.Status(); !st.MemoryOnly || !strings.Contains(st.Err.Error(), "has to list again") {
			t.Errorf("memory only: %v, %v", st.MemoryOnly, st.Err)
		}
		d.expect(t)
		w.expect(t)

		f.setDown(nil)
		advance(10 * time.Minute)
		if st := p.cache.Status(); st.MemoryOnly || st.Err != nil {
			t.Errorf("memory only: %v, %v", st.MemoryOnly, st.Err)
		}
		told := d.take()
		slices.Sort(told) // The relist tells of the deletion, and what the file owes.
		if want := []string{"lost ns/b@2", "update ns/a@1→1", "update ns/c@3→3"}; !slices.Equal(slices.Compact(told), want) {
			t.Errorf("told %q, expected %q", told, want)
		}
		w.expectEach(t, "", "ns/a@1", "ns/c@3", "ns/b is gone, deleted ns/b@2")
		expectStore(t, p.informer, f)
	})
}

// exchange writes the first bytes of a file, and returns those that were there.
func exchange(t *testing.T, path string, b []byte) (before []byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	before = make([]byte, len(b))
	_, err = file.ReadAt(before, 0)
	if err == nil {
		_, err = file.WriteAt(b, 0)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	return before
}

// TestWhatAProcessHasNotSeenYetIsNotDeleted: the one that had the file has seen more of the server. What the store lacks is
// gone only after a list of the newest state, which is demanded once the server was heard for a minute.
func TestWhatAProcessHasNotSeenYetIsNotDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		begin, goOn func(f *source) // Before the second process runs, and while the file is free.
		want        []string
	}{
		"its link is down": {
			begin: func(*source) {},
			goOn: func(f *source) {
				f.setDown(errUnreachable)
				advance(10 * time.Minute)
				f.setDown(nil)
				f.put(configMap("new"))
			},
			want: []string{"add ns/a@1 initial", "add ns/new@2"},
		},
		"it has a list after a while": {
			begin: func(f *source) { f.setDown(errUnreachable) },
			goOn: func(f *source) {
				advance(10 * time.Minute)
				f.takeRequests()
				f.setDown(nil)
				for !slices.ContainsFunc(f.takeRequests(), func(r string) bool { return strings.HasPrefix(r, "WATCH") }) {
					advance(time.Second) // client-go waits for up to a minute before it lists again.
				}
				advance(takeOverPatience - 5*time.Second)
				f.put(configMap("new"))
			},
			want: []string{"add ns/a@1 initial", "add ns/new@2"},
		},
		"the server has another history": {
			begin: func(*source) {},
			goOn:  func(*source) { advance(takeOverPatience + 5*time.Second) },
			want:  []string{"add ns/a@1 initial", "lost ns/new@2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f, path := newSource(t, configMap("a")), testsupport.Path(t)
				first := launch(t, path, f, nil)
				addDurable(t, first, "d")
				first.run()
				f.put(configMap("new"))
				settle()
				behind := newSource(t, configMap("a"))
				c.begin(behind)
				second := launch(t, path, behind, impatient)
				d := addDurable(t, second, "d")
				second.run()
				settle()
				first.stop()
				c.goOn(behind)
				settle()
				if st := second.cache.Status(); st.MemoryOnly {
					t.Errorf("the file was not taken over: %v", st.Err)
				}
				d.expect(t, c.want...)
				expectStore(t, second.informer, behind)
			})
		})
	}
}

// leavesADeletion runs a process until its file has the deletion of ns/new@2, at 3, for a name that has no handler.
func leavesADeletion(t *testing.T, path string) *process {
	t.Helper()
	f := newSource(t, configMap("a"))
	p := launch(t, path, f, nil)
	absent, err := p.informer.AddDurableEventHandler("absent", cache.ResourceEventHandlerFuncs{})
	if err != nil {
		t.Fatal(err)
	}
	p.run()
	settle()
	if err := p.informer.RemoveEventHandler(absent); err != nil {
		t.Fatal(err)
	}
	f.put(configMap("new"))
	f.remove("new")
	settle()
	return p
}

// TestADeletionThatAProcessHasNotSeenYetIsNotToldBeforeTheObject (H1): the process that had the file was told of both.
func TestADeletionThatAProcessHasNotSeenYetIsNotToldBeforeTheObject(t *testing.T) {
	bubble(t, func(t *testing.T) {
		path := testsupport.Path(t)
		first := leavesADeletion(t, path)
		behind := newSource(t, configMap("a"))
		second := launch(t, path, behind, impatient)
		told, _ := add(t, second.informer)
		second.run()
		settle()
		told.expect(t, "add ns/a@1 initial")
		first.stop()
		advance(takeOverPatience / 2)
		behind.put(configMap("new"))
		behind.remove("new")
		settle()
		if st := second.cache.Status(); st.MemoryOnly {
			t.Errorf("the file was not taken over: %v", st.Err)
		}
		told.expect(t, "add ns/new@2", "delete ns/new@3", "lost ns/new@3")
	})
}

// TestAFileOfAnotherHistoryIsTakenOver at last, although no watch is open for a minute.
func TestAFileOfAnotherHistoryIsTakenOver(t *testing.T) {
	for name, of := range map[string]func(*source) cache.ListerWatcher{
		"a watch that ends often": func(f *source) cache.ListerWatcher { return f },
		"no watch":                func(f *source) cache.ListerWatcher { return withoutWatch{f} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				path := testsupport.Path(t)
				first := leavesADeletion(t, path)
				f := newSource(t, configMap("a"))
				second := launch(t, path, of(f), impatient).run()
				settle()
				first.stop()
				for range 40 {
					advance(30 * time.Second)
					f.setDown(errUnreachable)
					advance(2 * time.Second)
					f.setDown(nil)
				}
				if st := second.cache.Status(); st.MemoryOnly {
					t.Errorf("not taken over in 20 minutes: %v", st.Err)
				}
			})
		})
	}
}

// takeOverPatience is how long the server is heard before the informer lists.
const takeOverPatience = time.Minute

// TestAnObjectThatIsLeftOutIsNotDeletedByATakeover: the file may have it, as its transform made it.
func TestAnObjectThatIsLeftOutIsNotDeletedByATakeover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := beginRollingUpdate(t)
		hold := launchHolder(t, u)
		u.launchSecond(t)
		err := u.second.informer.SetTransform(func(obj any) (any, error) {
			if accessor(obj).GetResourceVersion() == "2" {
				return nil, errors.New("a transform that fails")
			}
			return obj, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		u.second.run()
		settle()
		hold.stop()
		settle()
		u.expectMemoryBecause(t, "could not be stored")
		u.secondTold.expect(t, "add ns/a@1 initial", "add ns/c@3 initial", "add ns/d@4 initial")
		u.f.put(configMap("b"))
		u.f.restart()
		settle()
		u.expectMemory(t, false)
		u.secondTold.expect(t, "add ns/b@5")
		expectStore(t, u.second.informer, u.f)
	})
}

func (u *rollingUpdate) expectMemoryBecause(t *testing.T, why string) {
	t.Helper()
	if st := u.second.cache.Status(); !st.MemoryOnly || !strings.Contains(st.Err.Error(), why) {
		t.Errorf("memory only: %v, %v", st.MemoryOnly, st.Err)
	}
}

// TestDamageOfAFileThatIsTakenOverIsNotTheInformers: it does not relist because of it.
func TestDamageOfAFileThatIsTakenOverIsNotTheInformers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := beginRollingUpdate(t)
		u.first.stop()
		first := launch(t, u.path, u.f, nil) // One name has no handler, and deltas wait for it.
		addDurable(t, first, "d")
		first.run()
		u.f.remove("a", "b")
		settle()
		first.stop()
		change(t, u.path, "deltas", func(b *bolt.Bucket) error {
			key, value := b.Cursor().First()
			value = bytes.Clone(value)
			value[len(value)/2] ^= 1
			return b.Put(bytes.Clone(key), value)
		})
		hold, err := warmwatch.Open(u.path, warmwatch.Options{})
		if err != nil {
			t.Fatal(err)
		}
		u.launchSecond(t)
		u.second.run()
		settle()
		if err := hold.Close(); err != nil {
			t.Fatal(err)
		}
		settle()
		u.expectMemory(t, false)
		u.secondTold.expect(t, "add ns/c@3 initial", "add ns/d@4 initial", "lost ns/a@5", "lost ns/b@6")
		if st := u.second.informer.Status(); st.Relists != 1 || st.Err != nil {
			t.Errorf("%d relists, %v", st.Relists, st.Err)
		}
	})
}

// TestADamagedFileThatBecomesFreeIsReplacedAndTakenOver: by a file with what can be read, before the informer
// is ready.
func TestADamagedFileThatBecomesFreeIsReplacedAndTakenOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := beginRollingUpdate(t)
		hold := launchHolder(t, u)
		u.f.remove("b")
		u.f.setDown(errUnreachable)
		u.launchSecond(t)
		u.second.run()
		settle()
		hold.stop()
		b := testsupport.ReadUsed(t, u.path)
		for at := 0; at < len(b); at += persist.PageBytes {
			if page := b[at : at+persist.PageBytes]; bytes.Contains(page, []byte("uid-2")) {
				clear(page[:16]) // Its header.
			}
		}
		exchange(t, u.path, b)
		advance(2 * time.Minute)
		u.expectTakenOver(t, false)
		u.f.setDown(nil)
		settle()
		u.expectTakenOver(t, true)
		if st := u.second.cache.Status(); len(st.SetAside) != 1 {
			t.Errorf("set aside are %v", st.SetAside)
		}
		u.secondTold.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/c@3 initial", "add ns/d@4 initial", "lost ns/b@2")
		u.second.stop()
		p := launch(t, u.path, u.f, nil)
		d := addDurable(t, p, "d")
		p.run()
		settle()
		d.expect(t)
		expectStore(t, p.informer, u.f)
		if st := p.informer.Status(); st.Resumes != 1 {
			t.Errorf("status %+v", st)
		}
	})
}

func (u *rollingUpdate) expectTakenOver(t *testing.T, want bool) {
	t.Helper()
	if st := u.second.cache.Status(); st.MemoryOnly == want || st.TakenOver.IsZero() == want {
		t.Errorf("memory only: %v, taken over %v, %v", st.MemoryOnly, st.TakenOver, st.Err)
	}
}

// loseAndFind has the file be unreadable for a moment, in which it cannot be replaced either.
func loseAndFind(t *testing.T, p *process) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(p.path+".finished", "x"), 0o700); err != nil { // It cannot be replaced.
		t.Fatal(err)
	}
	sound := exchange(t, p.path, make([]byte, 16<<10))
	addItems(t, p, "q", "x") // Something to write.
	advance(time.Second)
	if st := p.cache.Status(); !st.MemoryOnly {
		t.Fatalf("the file is in use: %v", st.Err)
	}
	exchange(t, p.path, sound)
	advance(2 * time.Minute)
	if st := p.cache.Status(); st.MemoryOnly || st.Err != nil {
		t.Fatalf("memory only: %v, %v", st.MemoryOnly, st.Err)
	}
}

// expectDeletionAfterLoss runs p, whose source has a and b. The disk is away for a moment while the deletion
// of a waits for the reconciler.
func expectDeletionAfterLoss(t *testing.T, p *process, f *source, w *works) {
	t.Helper()
	p.run()
	settle()
	loseWhileADeletionWaits(t, p, f, w)
}

// loseWhileADeletionWaits is for a process that runs, see expectDeletionAfterLoss.
func loseWhileADeletionWaits(t *testing.T, p *process, f *source, w *works) {
	t.Helper()
	w.expect(t, "ns/a@1", "ns/b@2")
	w.set(fail)
	f.remove("a")
	settle()
	loseAndFind(t, p)
	w.set(nil)
	advance(20 * time.Minute)
	w.expectEach(t, "ns/b", "ns/a is gone, deleted ns/a@3")
}

// TestWhatWasForgottenIsNotInAFileThatComesBack, although the file was lost before the next commit.
func TestWhatWasForgottenIsNotInAFileThatComesBack(t *testing.T) {
	for _, wait := range []time.Duration{0, 100 * time.Millisecond, 5 * time.Second} {
		t.Run(wait.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				p := launch(t, testsupport.Path(t), f, nil)
				handler, err := p.informer.AddDurableEventHandler("handler", &recorder{})
				if err != nil {
					t.Fatal(err)
				}
				w := &works{lister: p.informer.GetStore(), during: fail}
				reconciler, err := p.informer.AddReconciler("reconciler", w.reconcile, warmwatch.ReconcilerOptions{})
				if err != nil {
					t.Fatal(err)
				}
				addItems(t, p, "work", "1", "2").Close()
				p.run()
				settle()
				f.remove("b")
				settle()
				remove(t, p, handler)
				remove(t, p, reconciler)
				settle()
				for name, forget := range map[string]func(string) error{
					"handler": p.informer.ForgetDurableEventHandler, "reconciler": p.informer.ForgetDurableEventHandler,
					"work": p.cache.Workqueues().Forget,
				} {
					if err := forget(name); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(wait)
				loseAndFind(t, p)
				f.put(configMap("a"))
				settle()
				st := p.informer.Status()
				queues := slices.DeleteFunc(p.cache.Workqueues().Status(), func(st workqueue.Status) bool { return st.Name == "q" })
				if len(st.Handlers) > 0 || len(st.Reconcilers) > 0 || len(queues) > 0 {
					t.Errorf("it has come back: %+v, %+v, %+v", st.Handlers, st.Reconcilers, queues)
				}
			})
		})
	}
}

// TestADeletionThatIsNotReconciledSurvivesADiskThatComesBack: its object is only in the file (Q6).
func TestADeletionThatIsNotReconciledSurvivesADiskThatComesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		p := launch(t, testsupport.Path(t), f, nil)
		w := addReconciler(t, p, 1)
		expectDeletionAfterLoss(t, p, f, w)
	})
}

// TestANameThatWasForgottenBeforeTheStartIsUsedAgain, and its work is not forgotten once more by a takeover.
func TestANameThatWasForgottenBeforeTheStartIsUsedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		p := &process{t: t, path: testsupport.Path(t)}
		var err error
		if p.cache, err = warmwatch.Open(p.path, warmwatch.Options{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.stop)
		transport := p.cache.WrapTransport(&gateway{cluster: func(r *http.Request, _ int) (*http.Response, error) {
			return reply(r, http.StatusForbidden, ""), nil
		}}).(request.Transport)
		p.informer = p.cache.NewInformer(seenListerWatcher{cache.ToListerWatcherWithContext(f), f, transport}, &corev1.ConfigMap{}, 0, nil).(*warmwatch.SharedIndexInformer)
		if err := p.informer.ForgetDurableEventHandler("r"); err != nil {
			t.Fatal(err)
		}
		w := addReconciler(t, p, 1)
		expectDeletionAfterLoss(t, p, f, w)
	})
}

// TestANameThatIsUsedAgainIsNotForgottenAtTheNextTakeover: it was forgotten before the first one, when there was no file.
func TestANameThatIsUsedAgainIsNotForgottenAtTheNextTakeover(t *testing.T) { // Q6
	for name, forget := range map[string]bool{"not forgotten": false, "forgotten": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				path := testsupport.Path(t)
				holder := launch(t, path, newSource(t), nil)
				p := launch(t, path, f, impatient)
				p.run()
				settle()
				if forget {
					if err := p.informer.ForgetDurableEventHandler("r"); err != nil {
						t.Fatal(err)
					}
				}
				holder.stop()
				advance(time.Minute)
				if st := p.cache.Status(); st.MemoryOnly || st.TakenOver.IsZero() {
					t.Fatal(st.Err)
				}
				w := addReconciler(t, p, 1)
				settle()
				loseWhileADeletionWaits(t, p, f, w)
			})
		})
	}
}
