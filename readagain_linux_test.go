package warmwatch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestAStartWaitsUntilTheFileCanBeRead: that a disk does not answer for a moment, as one of a network, does
// not end the informer.
func TestAStartWaitsUntilTheFileCanBeRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := testsupport.Path(t)
		first := launch(t, path, f, nil)
		w := addReconciler(t, first, 1)
		first.run()
		settle()
		w.expect(t, "ns/a@1")
		w.set(fail)
		f.remove("a")
		settle()
		first.stop()
		p := launch(t, path, f, nil)
		w = addReconciler(t, p, 1)
		restore := testsupport.FailReads(t, path)
		p.run()
		advance(time.Minute)
		if st := p.informer.Status(); st.Phase != warmwatch.PhaseLoading || st.Err == nil || p.informer.HasSynced() {
			t.Errorf("phase %s, %v", st.Phase, st.Err)
		}
		restore()
		settle()
		w.expect(t, "ns/a is gone, deleted ns/a@2")
		if st := p.informer.Status(); st.Phase != warmwatch.PhaseLive || st.Err != nil {
			t.Errorf("phase %s, %v", st.Phase, st.Err)
		}
	})
}

// doneWhen is done when its channel is closed.
type doneWhen struct{ done chan struct{} }

func (doneWhen) Name() string            { return "other" }
func (d doneWhen) Done() <-chan struct{} { return d.done }

// TestLostWorkWhileTheFileCannotBeRead: keys are recovered once all objects could be read.
func TestLostWorkWhileTheFileCannotBeRead(t *testing.T) {
	for name, fails := range map[string]bool{"it can": false, "not for a moment": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				p := launch(t, testsupport.Path(t), f, nil)
				addReconciler(t, p, 1).set(fail)
				p.run()
				settle()
				path := p.crash()
				change(t, path, "work", func(b *bolt.Bucket) error { return b.Delete([]byte("k1/r/ns/a")) })

				p = launch(t, path, f, nil)
				p.damaged = true
				other := doneWhen{make(chan struct{})}
				w := &works{lister: p.informer.GetStore()}
				if _, err := p.informer.AddReconciler("r", w.reconcile, warmwatch.ReconcilerOptions{WaitFor: []cache.DoneChecker{other}}); err != nil {
					t.Fatal(err)
				}
				p.run()
				settle()
				restore := func() {}
				if fails {
					restore = testsupport.FailReads(t, path)
				}
				close(other.done)
				advance(100 * time.Millisecond)
				restore()
				advance(time.Hour)
				w.expectEach(t, "", "ns/a@1", "ns/b@2")
				p = launch(t, p.crash(), f, nil)
				w = addReconciler(t, p, 1)
				p.run()
				settle()
				w.expect(t)
			})
		})
	}
}

func byVersion(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
	o.IndexVersion = "1"
	o.Indexers = cache.Indexers{"version": func(obj any) ([]string, error) { return []string{version(obj)}, nil }}
}

// expectIndex expects that the values of the index of byVersion are those of the objects.
func expectIndex(t *testing.T, p *process) {
	t.Helper()
	values, want := p.informer.GetIndexer().ListIndexFuncValues("version"), versions(p.informer.GetStore().List())
	slices.Sort(values)
	slices.Sort(want)
	if diff := cmp.Diff(want, values); diff != "" {
		t.Errorf("the index does not have the objects' values (-objects +index):\n%s", diff)
	}
}

// TestWhatIsPutWhileTheFileCannotBeRead (I1, I2): nobody knows then whether the object is stored already. All are listed
// afterwards, also where those that are in memory are as many as were counted, the indices are right, also if no other
// change comes, and the next process finds a file that is whole.
func TestWhatIsPutWhileTheFileCannotBeRead(t *testing.T) {
	for name, change := range map[string]func(*source){
		"a new object":                     func(f *source) { f.put(configMap("c")) },
		"one that is stored":               func(f *source) { f.put(configMap("a")) },
		"a deletion":                       func(f *source) { f.remove("a") },
		"one that comes and goes":          func(f *source) { f.put(configMap("c")); f.remove("c") },
		"a deletion of what is not stored": func(f *source) { f.put(configMap("c")); f.remove("c"); f.put(configMap("d")) },
	} {
		for _, later := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, another change follows: %v", name, later), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := newSource(t, configMap("a"), configMap("b"))
					path := testsupport.Path(t)
					p := launch(t, path, f, byVersion).run()
					settle()
					p.stop()
					f.remove("b")
					p = launch(t, path, f, byVersion)
					p.damaged = true
					p.run()
					settle()
					restore := testsupport.FailReads(t, path)
					change(f)
					advance(3 * time.Second)
					restore()
					advance(time.Second)
					expectStore(t, p.informer, f)
					if later {
						f.put(configMap("e"))
					}
					settle()
					expectIndex(t, p)
					expectStore(t, p.informer, f)
					if keys := p.informer.GetStore().ListKeys(); len(keys) != len(f.objects) {
						t.Errorf("keys: %q", keys)
					}
					p.stop()
					p = launch(t, path, f, byVersion).run()
					settle()
					if st := p.informer.Status(); st.StartedFrom != "disk" || st.Relists != 0 {
						t.Errorf("the next process: %+v", st)
					}
					expectStore(t, p.informer, f)
				})
			})
		}
	}
}

// flipBit flips a bit of the record of the first key in a bucket of a file that is closed.
func flipBit(t *testing.T, path, bucket string) {
	t.Helper()
	change(t, path, bucket, func(b *bolt.Bucket) error {
		k, v := b.Cursor().First()
		v = bytes.Clone(v)
		v[len(v)/2] ^= 1
		return b.Put(bytes.Clone(k), v)
	})
}

// TestAnIndexThatIsNotWholeIsNotRead: all entries of a damaged index are removed before they are made anew. If that
// fails in the middle, and the server is away, reads by the index fail, and the next process makes it before it serves.
func TestAnIndexThatIsNotWholeIsNotRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		path := testsupport.Path(t)
		var fails bool
		restore := func() {}
		set := func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
			o.IndexVersion = "1"
			o.Indexers = cache.Indexers{"version": func(obj any) ([]string, error) {
				if fails && bytes.Contains(debug.Stack(), []byte("RebuildIndices")) {
					fails, restore = false, testsupport.FailReads(t, path)
				}
				return []string{version(obj)}, nil
			}}
		}
		p := launch(t, path, f, set).run()
		settle()
		p.stop()
		flipBit(t, path, "index")
		fails = true
		p = launch(t, path, f, set)
		p.damaged = true
		p.run()
		settle()
		if fails {
			t.Fatal("the index was not rebuilt")
		}
		f.setDown(errUnreachable)
		restore()
		settle()
		if got, err := p.informer.GetIndexer().ByIndex("version", "ns/b@2"); err == nil {
			t.Errorf("read by an index that is not whole: %q", versions(got))
		}
		p.stop()
		p = launch(t, path, f, set).run()
		settle()
		if st := p.informer.Status(); st.StartedFrom != "disk" || !p.informer.HasSynced() {
			t.Errorf("the next process: %+v", st)
		}
		expectIndex(t, p)
		f.setDown(nil)
		settle()
		expectIndex(t, p)
	})
}

// TestAnUnreadableObjectThatIsReplaced may leave index entries. The next process rebuilds the indices if this one has
// ended before the relist that the damage asks for.
func TestAnUnreadableObjectThatIsReplaced(t *testing.T) {
	for _, after := range []time.Duration{10 * time.Millisecond, 500 * time.Millisecond, 3 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				path := testsupport.Path(t)
				fromFile := func(c *warmwatch.Options, o *warmwatch.InformerOptions) {
					byVersion(c, o)
					c.MemoryBudget = 1
				}
				p := launch(t, path, f, fromFile).run()
				settle()
				p.stop()
				p = launch(t, path, f, fromFile)
				p.damaged = true
				p.run()
				settle()
				flipInUse(t, path, "kns/a")
				f.put(configMap("a"))
				advance(after)
				p.stop()
				p = launch(t, path, f, fromFile)
				p.damaged = true
				p.run()
				expectIndex(t, p)
				settle()
				expectIndex(t, p)
			})
		})
	}
}

// TestAnUnreadableObjectStaysInTheIndex where the indices are rebuilt without the server: who reads by the index meets the
// damage, in each process.
func TestAnUnreadableObjectStaysInTheIndex(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a", "x"), configMap("b", "x"), configMap("c", "x"))
		path := filled(t, f, withContentIndex)
		for _, key := range []string{"ns/b", "ns/c"} {
			changeValue(t, path, "objects", key, func(v []byte) { v[len(v)-1] ^= 1 })
		}
		f.put(configMap("c", "y")) // What the watch brings. Nothing else is answered.
		f.onWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			f.with(func() { f.down = errUnreachable })
			return nil, nil
		}
		for life := range 3 {
			p := launch(t, path, f, withContentIndex)
			p.damaged = true
			p.run()
			advance(3 * time.Second)
			keys, err := p.informer.GetIndexer().IndexKeys("content", "x")
			if !slices.Contains(keys, "ns/b") || err != nil || life > 0 && len(keys) != 2 {
				t.Errorf("life %d: %q, %v", life, keys, err)
			}
			if err := p.informer.Status().Err; err == nil {
				t.Errorf("life %d: the Status has no error", life)
			}
			f.setDown(errUnreachable)
			path = testsupport.Path(t)
			testsupport.CopyFile(t, p.path, path) // It is killed.
			p.stop()
		}
	})
}

// flipInUse flips a bit of the record of a key in a file that is open.
func flipInUse(t *testing.T, path, key string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(content, []byte(key)) + len(key) + 20
	_, err = file.WriteAt([]byte{content[at] ^ 1}, int64(at))
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestARefusedHandlerLeavesNoName that deltas are kept for.
func TestARefusedHandlerLeavesNoName(t *testing.T) {
	for name, known := range map[string]bool{"a new name": false, "one that is known": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"))
				path := testsupport.Path(t)
				p := launch(t, path, f, nil)
				if known {
					addReconciler(t, p, 1)
				}
				p.run()
				settle()
				p.stop()
				p = launch(t, path, f, nil).run()
				settle()
				restore := testsupport.FailReads(t, path)
				_, err := p.informer.AddReconciler("r", func(context.Context, cache.ObjectName) error { return nil }, warmwatch.ReconcilerOptions{})
				restore()
				if err == nil {
					t.Fatal("it was not refused")
				}
				f.put(configMap("a"))
				settle()
				if got := p.informer.Status().Handlers; len(got) > 0 != known || known && got[0].Undelivered != 1 {
					t.Errorf("%+v", got)
				}
				p.stop()
				p = launch(t, path, f, nil)
				w := addReconciler(t, p, 1)
				p.run()
				settle()
				w.expect(t, "ns/a@2")
			})
		})
	}
}

// TestDurableHandlersOfAFileThatCannotBeReadAreToldEverything: it may be one that was damaged.
func TestDurableHandlersOfAFileThatCannotBeReadAreToldEverything(t *testing.T) {
	bubble(t, damagedFile{back: allButObjects, unreadable: testsupport.FailReads}.testToldEverything)
}
