package warmwatch_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// lagsBehind leaves a process that was told of the objects only, and whose link is down, while the file that is free
// now has ns/new as well, as the server has, which has no history.
func lagsBehind(t *testing.T, objects ...runtime.Object) (behind *source, second *process, d *recorder) {
	t.Helper()
	return lagsBehindWith(t, nil, objects...)
}

// lagsBehindWith is lagsBehind with a transform of the process that lags.
func lagsBehindWith(t *testing.T, transform cache.TransformFunc, objects ...runtime.Object) (behind *source, second *process, d *recorder) {
	t.Helper()
	f, path := newSource(t, objects...), testsupport.Path(t)
	first := launch(t, path, f, nil)
	addDurable(t, first, "d")
	first.run()
	settle()
	behind = newSource(t, objects...)
	behind.watchList = true
	second = launch(t, path, behind, impatient)
	if err := second.informer.SetTransform(transform); err != nil {
		t.Fatal(err)
	}
	d = addDurable(t, second, "d")
	second.run()
	settle()
	d.take()
	f.put(configMap("new"))
	settle()
	behind.setDown(errUnreachable)
	behind.put(configMap("new"))
	first.stop()
	settle()
	return behind, second, d
}

func expectTold(t *testing.T, p *process, d *recorder, want ...string) {
	t.Helper()
	if st := p.cache.Status(); st.MemoryOnly {
		t.Errorf("the file was not taken over: %v", st.Err)
	}
	d.expect(t, want...)
}

// TestAFileIsNotTakenOverDuringASlowList: the server is heard, but what the store lacks is in the list that is under way.
func TestAFileIsNotTakenOverDuringASlowList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var objects []runtime.Object
		for i := range 30 {
			objects = append(objects, configMap(fmt.Sprintf("o%02d", i)))
		}
		behind, second, d := lagsBehind(t, objects...)
		listsSlowly(behind, 5*time.Second) // 160 s.
		behind.setDown(nil)
		advance(10 * time.Minute)
		expectTold(t, second, d, "add ns/new@31")
	})
}

// TestAServerThatOpensNoWatchIsListed, although it answers what it is asked.
func TestAServerThatOpensNoWatchIsListed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		behind, second, d := lagsBehind(t, configMap("a"))
		behind.with(func() {
			behind.onWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				return nil, apierrors.NewTooManyRequests("not now", 1)
			}
		})
		behind.setDown(nil)
		advance(20 * time.Minute)
		behind.with(func() { behind.onWatch = nil })
		advance(10 * time.Minute)
		expectTold(t, second, d, "add ns/new@2")
	})
}

// TestASilentWatchDecidesNothing: there were two, because the link was down again.
func TestASilentWatchDecidesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		behind, second, d := lagsBehind(t, configMap("a"))
		behind.with(func() {
			behind.onWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				s := watch.NewFake()
				time.AfterFunc(45*time.Second, s.Stop) // So long client-go takes it for live.
				return s, nil
			}
		})
		for range 2 {
			behind.setDown(nil)
			for second.informer.Status().Phase != warmwatch.PhaseLive {
				advance(100 * time.Millisecond)
			}
			behind.setDown(errUnreachable)
			advance(5 * time.Minute)
		}
		listsSlowly(behind, 5*time.Second) // 15 s.
		behind.setDown(nil)
		advance(10 * time.Minute)
		expectTold(t, second, d, "add ns/new@2")
	})
}

// TestEachInformerDecidesForItself: the server of another one of the Cache was put back.
func TestEachInformerDecidesForItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second, g2, d := twoInformersLag(t)
		g2.setDown(errUnreachable)
		first.stop()
		advance(10 * time.Minute)
		g2.put(configMap("new"))
		listsSlowly(g2, 5*time.Second)
		g2.setDown(nil)
		advance(20 * time.Minute)
		expectTold(t, second, d, "add ns/new@2")
	})
}

// TestInformersFindOutTogetherThatAServerWasPutBack, and not one after the other.
func TestInformersFindOutTogetherThatAServerWasPutBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second, _, d := twoInformersLag(t)
		first.stop()
		advance(takeOverPatience + 15*time.Second)
		expectTold(t, second, d, "lost ns/new@2")
	})
}

// twoServers leaves a process that has the file, and one that waits for it and was told of the same, each with a server of
// its own: that of the second one stands for the same server after it was put back.
func twoServers(t *testing.T, watchList bool) (old, back *source, first, second *process, d *recorder) {
	t.Helper()
	path := testsupport.Path(t)
	old, back = newSource(t, configMap("a")), newSource(t, configMap("a"))
	first = launch(t, path, old, nil)
	addDurable(t, first, "d")
	first.run()
	settle()
	back.watchList = watchList
	second = launch(t, path, back, impatient)
	d = addDurable(t, second, "d")
	second.run()
	settle()
	d.take()
	return old, back, first, second, d
}

// twoInformersLag leaves a process with two informers, both of which the file is ahead of that the first process
// holds. It returns the source of the second one, and its handler.
func twoInformersLag(t *testing.T) (first, second *process, g2 *source, d *recorder) {
	t.Helper()
	path := testsupport.Path(t)
	f, g := newSource(t, configMap("a")), newSource(t, configMap("a"))
	first = launch(t, path, f, nil)
	addDurable(t, first, "d")
	first.run()
	addOtherInformer(t, first, g)
	settle()
	g2 = newSource(t, configMap("a"))
	g2.watchList = true
	second = launch(t, path, newSource(t, configMap("a")), impatient)
	addDurable(t, second, "d")
	second.run()
	d = addOtherInformer(t, second, g2)
	settle()
	d.expect(t, "add ns/a@1 initial")
	f.put(configMap("lost"))
	g.put(configMap("new"))
	settle()
	return first, second, g2, d
}

// listsSlowly forgets the history, and streams lists, an object after each delay, as a slow link does.
func listsSlowly(f *source, delay time.Duration) {
	f.compact()
	f.with(func() {
		f.onWatch = func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents == nil {
				return nil, nil
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			s := newStream(f, f.rv)
			for _, obj := range f.objects {
				s.pushLocked(watch.Event{Type: watch.Added, Object: obj})
			}
			s.pushLocked(endOfList(f.rvLocked()))
			slow := slowStream{s, make(chan watch.Event)}
			go slow.run(delay)
			return slow, nil
		}
	})
}

// slowStream is slow until the list is complete.
type slowStream struct {
	*stream
	out chan watch.Event
}

func (s slowStream) ResultChan() <-chan watch.Event { return s.out }

func (s slowStream) run(delay time.Duration) {
	defer close(s.out)
	for e := range s.ch {
		select {
		case <-time.After(delay):
		case <-s.stop:
			return
		}
		if e.Type == watch.Bookmark {
			delay = 0
		}
		select {
		case s.out <- e:
		case <-s.stop:
			return
		}
	}
}

// TestAServerThatIsPutBackAfterATakeover (Q6): which deletion is the later is not in the versions, a day after a takeover.
func TestAServerThatIsPutBackAfterATakeover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t), testsupport.Path(t)
		f.rv = 999
		f.put(configMap("b", "old"), configMap("z"))
		first := launch(t, path, f, nil)
		addReconcilerNamed(t, first, "r").set(nil)
		first.run()
		settle()
		second := launch(t, path, f, impatient)
		w := addReconcilerNamed(t, second, "r")
		w.set(nil)
		second.run()
		settle()
		first.stop()
		settle()
		if st := second.cache.Status(); st.MemoryOnly {
			t.Fatalf("the file was not taken over: %v", st.Err)
		}
		advance(24 * time.Hour)
		w.expectEach(t, "", "ns/b@1000", "ns/z@1001")
		w.set(fail)
		f.remove("b")
		settle()
		f.restore(401, at("400", "uid-1", "b", "again"), at("401", "uid-2", "z", ""))
		settle()
		f.put(configMap("b", "new"))
		settle()
		f.remove("b")
		settle()
		w.set(nil)
		advance(40 * time.Minute)
		w.expectEach(t, "ns/z@", "ns/b is gone, deleted ns/b@403")
	})
}

// TestADeletionThatAFileOwesDoesNotReplaceALaterOneInTheNextProcess (Q6): nobody had the name at the takeover.
func TestADeletionThatAFileOwesDoesNotReplaceALaterOneInTheNextProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		path := testsupport.Path(t)
		first := leavesADeletion(t, path)
		f := newSource(t, configMap("a"), configMap("new"))
		second := launch(t, path, f, impatient)
		w := &works{lister: second.informer.GetStore()}
		registration, err := second.informer.AddReconciler("r", w.reconcile, warmwatch.ReconcilerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		second.run()
		settle()
		w.set(fail)
		f.remove("new")
		f.put(at("", "uid-2", "new", "selected again"))
		f.remove("new")
		settle()
		remove(t, second, registration)
		settle()
		first.stop()
		settle()
		if st := second.cache.Status(); st.MemoryOnly {
			t.Errorf("the file was not taken over: %v", st.Err)
		}
		second.stop()
		third := launch(t, path, f, nil)
		w = addReconcilerNamed(t, third, "r")
		third.run()
		settle() // The handler is told before anything is reconciled.
		w.set(nil)
		advance(40 * time.Minute)
		w.expectEach(t, "ns/a", "ns/new is gone, deleted ns/new@5")
	})
}

// TestAListDecidesAboutTheFileAsItWas when the list began: a third process has made it one of the server's history.
func TestAListDecidesAboutTheFileAsItWas(t *testing.T) {
	for name, third := range map[string]bool{"a third process": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				path := testsupport.Path(t)
				old, g := newSource(t, configMap("a")), newSource(t, configMap("a"))
				first := launch(t, path, old, nil)
				addDurable(t, first, "d")
				first.run()
				addOtherInformer(t, first, g)
				settle()
				back, g2 := newSource(t, configMap("a")), newSource(t, configMap("a"))
				second := launch(t, path, back, impatient)
				d := addDurable(t, second, "d")
				second.run()
				addOtherInformer(t, second, g2)
				settle()
				d.take()
				old.with(func() { old.rv = 100 })
				old.put(configMap("lost"))
				g.put(configMap("new"))
				settle()
				g2.with(func() { // It cannot be listed.
					g2.onList = func(context.Context, metav1.ListOptions) (runtime.Object, error) {
						return nil, errors.New("no")
					}
				})
				first.stop()
				advance(takeOverPatience + 5*time.Second) // The first informer has listed.
				if third {
					back.setDown(errUnreachable)
					now := newSource(t, configMap("a"), configMap("fresh")) // The server that was put back, by another link.
					now.watchList = true
					p := launch(t, path, now, nil)
					addDurable(t, p, "d")
					p.run()
					addOtherInformer(t, p, g)
					advance(20 * time.Second)
					p.stop()
					advance(3 * time.Second)
				}
				g2.with(func() { g2.onList = nil })
				g2.put(configMap("new"))
				advance(3 * time.Minute)
				if third {
					d.expect(t) // ns/fresh exists.
				} else {
					d.expect(t, "lost ns/lost@101")
				}
			})
		})
	}
}

// TestAServerThatGoesOnWasPutBack although its versions pass those of one object of the file after the other.
func TestAServerThatGoesOnWasPutBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		old, back, first, second, _ := twoServers(t, false)
		for i := range 60 { // Jobs of a CronJob.
			old.with(func() { old.rv = int64(50 * (i + 1)) })
			old.put(configMap(fmt.Sprintf("job-%02d", i)))
		}
		settle()
		first.stop()
		begun := time.Now()
		for second.cache.Status().MemoryOnly && time.Since(begun) < 2*time.Hour {
			advance(time.Second)
			back.put(configMap("a", time.Now().String()))
		}
		if d := time.Since(begun); d > 2*time.Minute {
			t.Errorf("taken over after %v, memory only: %v", d, second.cache.Status().MemoryOnly)
		}
	})
}

// TestAServerThatAnswersSlowlyWasPutBack: each of its answers takes 6 s.
func TestAServerThatAnswersSlowlyWasPutBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		old, back, first, _, d := twoServers(t, false)
		old.put(configMap("lost"))
		settle()
		back.with(func() {
			back.onList = func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
				select {
				case <-time.After(6 * time.Second):
					return nil, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
		})
		first.stop()
		advance(time.Hour)
		d.expect(t, "lost ns/lost@2")
	})
}

// TestAnEarlierDeletionDoesNotReplaceThatOfTheFile (Q6), which the store has not come to.
func TestAnEarlierDeletionDoesNotReplaceThatOfTheFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		path := testsupport.Path(t)
		f, far := newSource(t, configMap("a"), configMap("b")), newSource(t, configMap("a"), configMap("b"))
		first := launch(t, path, f, nil)
		w1 := addReconcilerNamed(t, first, "r")
		w1.set(nil)
		first.run()
		settle()
		second := launch(t, path, far, impatient)
		w := addReconcilerNamed(t, second, "r")
		w.set(nil)
		second.run()
		settle()
		w1.set(fail)
		w.set(fail)
		f.remove("b")
		f.put(at("", "uid-2", "b", "selected again"))
		f.remove("b") // At 5.
		settle()
		first.stop()
		advance(20 * time.Second)
		far.remove("b") // At 3. The rest of the history does not come by this watch.
		advance(10 * time.Second)
		far.setDown(errUnreachable)
		far.put(at("", "uid-2", "b", "selected again"))
		far.remove("b")
		far.restart()
		far.setDown(nil)
		settle()
		w.expectEach(t, "", "ns/a@1", "ns/b@2")
		w.set(nil)
		advance(40 * time.Minute)
		w.expectEach(t, "", "ns/b is gone, deleted ns/b@5")
	})
}

// addOtherInformer adds and runs another informer of a process, with a durable handler.
func addOtherInformer(t *testing.T, p *process, f *source) *recorder {
	t.Helper()
	s, err := p.cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps, FieldSelector: "metadata.name!=x"})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	if _, err := s.AddDurableEventHandler("d", r); err != nil {
		t.Fatal(err)
	}
	start(t, s)
	return r
}

// TestAnObjectThatAServerHasKeptExists: it was put back to a version above the object's, which the store has not come to.
func TestAnObjectThatAServerHasKeptExists(t *testing.T) {
	for name, slow := range map[string]bool{"slow list": true, "no watch": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				old, back, first, second, d := twoServers(t, true)
				old.put(configMap("new"))
				old.with(func() { old.rv = 100 })
				old.put(configMap("lost"))
				settle()
				back.setDown(errUnreachable) // etcd is put back.
				back.put(configMap("new"))
				if slow {
					for range 25 {
						back.put(configMap("other"), configMap("new2"))
						back.remove("other")
					}
					listsSlowly(back, 30*time.Second)
				} else {
					back.with(func() {
						back.rv = 50
						back.onWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
							return nil, apierrors.NewTooManyRequests("not now", 1)
						}
					})
				}
				back.setDown(nil)
				first.stop()
				advance(10 * time.Minute)
				back.with(func() { back.onWatch = nil })
				advance(10 * time.Minute)
				if st := second.cache.Status(); st.MemoryOnly {
					t.Errorf("the file was not taken over: %v", st.Err)
				}
				want := []string{"add ns/new@2", "lost ns/lost@101"}
				if slow {
					want = append(want, "add ns/new2@76")
				}
				d.expectInAnyOrder(t, want...) // Never "lost ns/new@2": it exists.
			})
		})
	}
}

// TestAQuietServerWasPutBack although its version has passed the file's: no watch without bookmarks shows that.
func TestAQuietServerWasPutBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		old, back, first, _, d := twoServers(t, false)
		old.with(func() { old.rv = 100 })
		old.put(configMap("lost"))
		settle()
		back.with(func() { back.rv = 1000 })
		first.stop()
		advance(time.Hour)
		d.expect(t, "lost ns/lost@101")
	})
}

// TestAListThatIsForcedDeletesNothingThatIsLeftOut: an old version is better than a deletion that has not happened.
func TestAListThatIsForcedDeletesNothingThatIsLeftOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		refuse := func(obj any) (any, error) {
			if accessor(obj).GetResourceVersion() == "4" {
				return nil, errors.New("a transform that fails")
			}
			return obj, nil
		}
		behind, _, d := lagsBehindWith(t, refuse, configMap("a"), configMap("b"))
		behind.put(configMap("b", "refused")) // At 4; ns/new is at 3.
		behind.with(func() {
			behind.onWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil }
		})
		behind.setDown(nil)
		advance(takeOverPatience / 2)
		behind.with(func() {
			behind.onWatch = func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if o.SendInitialEvents != nil {
					return nil, nil
				}
				return watch.NewFake(), nil
			}
		})
		advance(20 * time.Minute)
		d.expect(t, "add ns/new@3")
	})
}

// TestAStoreWithoutAVersionIsBehindTheFile until there is a list: its lists have none.
func TestAStoreWithoutAVersionIsBehindTheFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, configMap("a")), testsupport.Path(t)
		first := launch(t, path, f, nil)
		addDurable(t, first, "d")
		first.run()
		settle()
		behind := newSource(t, configMap("a"))
		behind.onList = func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			list := &corev1.ConfigMapList{}
			behind.mu.Lock()
			defer behind.mu.Unlock()
			for _, obj := range behind.objects {
				list.Items = append(list.Items, *obj.(*corev1.ConfigMap))
			}
			return list, nil
		}
		second := launch(t, path, behind, impatient)
		d := addDurable(t, second, "d")
		second.run()
		settle()
		d.expect(t, "add ns/a@1 initial")
		f.put(configMap("new"))
		settle()
		behind.setDown(errUnreachable)
		behind.put(configMap("new"))
		first.stop()
		settle()
		d.expect(t)
		behind.setDown(nil)
		advance(10 * time.Minute)
		expectTold(t, second, d, "add ns/new@2", "update ns/a@1→1", "update ns/new@2→2")
	})
}
