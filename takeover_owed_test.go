package warmwatch_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	bolt "go.etcd.io/bbolt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// heardLost reports whether it was told that an object is gone, whatever of it is known.
func heardLost(told []string, key string) bool {
	return slices.ContainsFunc(told, func(event string) bool {
		return event == "lost "+key || strings.HasPrefix(event, "lost "+key+"@") || strings.HasPrefix(event, "delete "+key+"@")
	})
}

// TestADeletionIsToldDuringASlowInitialList (Q2): the part of the list that has the object's key is read after the
// takeover of a file whose handlers know the object. It is deleted before, so that the file owes the deletion, or after.
func TestADeletionIsToldDuringASlowInitialList(t *testing.T) {
	readInChunksOf(t, 16)
	for n := range 1 << 5 {
		d := deletedDuringAList{durable: n&1 != 0, anew: n&2 != 0, owed: n&4 != 0, addedAgain: n&8 != 0, changed: n&16 != 0}
		if d.changed && !d.anew {
			continue
		}
		t.Run(fmt.Sprintf("%+v", d), func(t *testing.T) {
			bubble(t, func(t *testing.T) { d.check(t) })
		})
	}
}

type deletedDuringAList struct {
	durable    bool // The handler is.
	anew       bool // There is another object of the name at once.
	owed       bool
	addedAgain bool // The handler is removed in its list before the takeover, and added again.
	changed    bool // The other object is, after the takeover.
}

func (d deletedDuringAList) check(t *testing.T) {
	f, path := newSource(t), testsupport.Path(t)
	for i := range 100 { // Seven chunks: more than are read ahead.
		f.put(configMap(fmt.Sprintf("o%02d", i)))
	}
	f.put(configMap("zz"))
	addTo := func(p *process, r *recorder) (registered cache.ResourceEventHandlerRegistration) {
		var err error
		if d.durable {
			registered, err = p.informer.AddDurableEventHandler("d", r)
		} else {
			registered, err = p.informer.AddEventHandler(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		return registered
	}
	first := launch(t, path, f, nil)
	knows := &recorder{}
	addTo(first, knows)
	first.run()
	settle()
	if !slices.Contains(knows.take(), "add ns/zz@101 initial") {
		t.Fatal("the first process did not tell of zz")
	}
	first.stop()

	_, hold := openQuietly(t, path)
	remove := func() {
		f.remove("zz")
		if d.anew {
			f.put(configMap("zz"))
		}
	}
	if d.owed {
		remove() // Nobody watches.
	}
	second := launch(t, path, f, impatient)
	r := &recorder{during: func(string) { time.Sleep(10 * time.Second) }}
	registered := addTo(second, r)
	second.run()
	advance(time.Minute) // It is in its first chunk.
	if d.addedAgain {
		if err := second.informer.RemoveEventHandler(registered); err != nil {
			t.Fatal(err)
		}
		addTo(second, r)
		advance(time.Minute)
	}
	hold()
	advance(10 * time.Second)
	if st := second.cache.Status(); st.MemoryOnly {
		t.Fatalf("not taken over during the list: %v", st.Err)
	}
	if !d.owed {
		remove()
	}
	if d.changed {
		advance(time.Second)
		f.put(configMap("zz"))
	}
	advance(2 * time.Hour)
	told := slices.DeleteFunc(r.take(), func(event string) bool { return !strings.Contains(event, "ns/zz") })
	var want []string
	switch {
	case !d.anew && d.owed:
		want = []string{"lost ns/zz@101"}
	case !d.anew:
		want = []string{"delete ns/zz@102"}
	case d.owed && d.changed:
		want = []string{"lost ns/zz@101", "add ns/zz@104 initial"}
	case d.changed:
		want = []string{"delete ns/zz@102", "add ns/zz@104 initial"}
	case d.owed:
		want = []string{"lost ns/zz@101", "add ns/zz@103 initial"}
	default:
		want = []string{"delete ns/zz@102", "add ns/zz@103 initial"}
	}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, expected %q", told, want)
	}
}

// TestAttemptsOfATakeoverThatFailTellOnce, also of what has no object, and add the work of the file once: the file is
// damaged, and cannot be replaced, as on a full disk.
func TestAttemptsOfATakeoverThatFailTellOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, configMap("c")), testsupport.Path(t)
		leaveDeletions(t, path, f)
		flipAll(t, path, "objects", "kns/c")
		_, hold := openQuietly(t, path)
		f.remove("c") // Nobody watches.
		second := launch(t, path, f, impatient)
		second.damaged = true
		durable := addDurable(t, second, "d")
		w := addReconciler(t, second, 1)
		second.run()
		settle()
		durable.take()
		hold()
		exchangeKeys(t, path, "deleted")
		if err := os.MkdirAll(filepath.Join(path+".finished", "x"), 0o700); err != nil { // It cannot be replaced.
			t.Fatal(err)
		}
		advance(time.Hour)
		if told := durable.take(); len(told) != 1 {
			t.Errorf("told %d times that an object without content is gone: %.100q", len(told), told)
		}
		w.mu.Lock()
		reconciled := map[string]int{}
		for _, what := range w.done {
			if strings.Contains(what, ", deleted") {
				reconciled[what]++
			}
		}
		w.mu.Unlock()
		if len(reconciled) == 0 {
			t.Error("no deletion of the file was reconciled")
		}
		for what, n := range reconciled {
			if n > 1 {
				t.Errorf("reconciled %d times: %s", n, what)
			}
		}
	})
}

// TestADamagedRecordOfAnObjectThatWasMadeAnewMayBeOfTheFormerOne, as a relist and a damaged deletion count it (Q2).
func TestADamagedRecordOfAnObjectThatWasMadeAnewMayBeOfTheFormerOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, configMap("a"), configMap("b")), testsupport.Path(t)
		first := launch(t, path, f, nil)
		addDurable(t, first, "d")
		first.run()
		settle()
		first.stop()
		flipAll(t, path, "objects", "kns/a")
		_, hold := openQuietly(t, path)
		f.remove("a")
		f.put(configMap("a")) // Another uid.
		second := launch(t, path, f, impatient)
		second.damaged = true
		d := addDurable(t, second, "d")
		second.run()
		settle()
		d.take()
		hold()
		settle()
		if st := second.cache.Status(); st.MemoryOnly {
			t.Fatal(st.Err)
		}
		if told := d.take(); !heardLost(told, "ns/a") {
			t.Errorf("told %q, expected that the former a is gone", told)
		}
	})
}

// TestObjectsWithoutUIDsOfATakenOverFileAreNotTakenForOthers: a transform may strip the uids that the file has, or those
// that the store has. Both objects are there all the time.
func TestObjectsWithoutUIDsOfATakenOverFileAreNotTakenForOthers(t *testing.T) {
	for name, c := range map[string]struct {
		transformed runtime.Object // By the process before.
		strips      bool           // The process that takes the file over, which makes ConfigMaps, also does.
		damaged     bool           // A record.
	}{
		"the file has none":                    {transformed: &corev1.ConfigMap{}},
		"and objects of another Go type":       {transformed: &corev1.Secret{}},
		"the store has none, one is damaged":   {transformed: &corev1.ConfigMap{}, strips: true, damaged: true},
		"and the file has another type's ones": {transformed: &corev1.Secret{}, strips: true, damaged: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f, path := newSource(t, configMap("a"), configMap("b")), testsupport.Path(t)
				begin := func(version string, transformed runtime.Object, strips bool) (*process, *recorder) {
					p := launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
						impatient(o, io)
						o.TransformVersion, io.Transformed = version, transformed
					})
					p.damaged = c.damaged
					if strips {
						if err := p.informer.SetTransform(strippedTo(transformed)); err != nil {
							t.Fatal(err)
						}
					}
					d := addDurable(t, p, "d")
					p.run()
					settle()
					return p, d
				}
				first, _ := begin("1", c.transformed, true)
				first.stop()
				if c.damaged {
					flipAll(t, path, "objects", "kns/a")
				}
				_, hold := openQuietly(t, path)
				second, d := begin("2", &corev1.ConfigMap{}, c.strips)
				d.take()
				hold()
				settle()
				if st := second.cache.Status(); st.MemoryOnly {
					t.Fatal(st.Err)
				}
				d.expect(t)
			})
		})
	}
}

// strippedTo returns a transform that keeps the name and the version of an object, in one of another type.
func strippedTo(example runtime.Object) cache.TransformFunc {
	return func(obj any) (any, error) {
		to := example.DeepCopyObject().(metav1.Object)
		to.SetNamespace(accessor(obj).GetNamespace())
		to.SetName(accessor(obj).GetName())
		to.SetResourceVersion(accessor(obj).GetResourceVersion())
		return to, nil
	}
}

// TestACursorThatATakenOverFileHasLostCostsNoDeletion, as at a start: the state of the queue has its name. If that is
// lost, too, it does for a name that comes within the minute (Q2).
func TestACursorThatATakenOverFileHasLostCostsNoDeletion(t *testing.T) {
	for _, takenOver := range []bool{false, true} {
		for _, stateLost := range []bool{false, true} {
			if stateLost && !takenOver {
				continue // A start holds nothing for a name that may never come.
			}
			t.Run(fmt.Sprintf("takenOver=%t, the state is lost: %t", takenOver, stateLost), func(t *testing.T) {
				bubble(t, func(t *testing.T) { checkLostCursor(t, takenOver, stateLost) })
			})
		}
	}
}

func checkLostCursor(t *testing.T, takenOver, stateLost bool) {
	f, path := newSource(t, configMap("a"), configMap("c")), testsupport.Path(t)
	first := launch(t, path, f, nil)
	addDurable(t, first, "d")
	addDurable(t, first, "e")
	first.run()
	settle()
	first.stop()
	change(t, path, "cursors", func(b *bolt.Bucket) error { return b.Delete([]byte("kdurable/e")) })
	if stateLost {
		loseBuckets(t, path, "queue")
	}
	release := func() {}
	if takenOver {
		_, release = openQuietly(t, path)
	}
	f.remove("c")
	f.compact()
	second := launch(t, path, f, impatient)
	second.damaged = true
	addDurable(t, second, "d")
	second.run()
	advance(20 * time.Second)
	release()
	advance(5 * time.Second)
	if st := second.cache.Status(); st.MemoryOnly {
		t.Fatal(st.Err)
	}
	e := addDurable(t, second, "e")
	settle()
	if told := e.take(); !heardLost(told, "ns/c") {
		t.Errorf("told %q, expected that c is gone", told)
	}
}

// TestWhatCannotBeReadOfAFileThatIsNotTakenOverYetIsNotLoggedEachTime that it is read, once a second.
func TestWhatCannotBeReadOfAFileThatIsNotTakenOverYetIsNotLoggedEachTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, configMap("a")), testsupport.Path(t)
		first := launch(t, path, f, nil).run()
		f.put(configMap("new"))
		settle()
		behind, lines := newSource(t, configMap("a")), atomic.Int64{}
		logger := funcr.New(func(_, args string) {
			if strings.Contains(args, "ns/a") {
				lines.Add(1)
			}
		}, funcr.Options{})
		second := launch(t, path, behind, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
			o.LockTimeout, o.Logger = time.Millisecond, &logger
		})
		second.run()
		settle()
		behind.setDown(errUnreachable)
		behind.closeWatches()
		advance(time.Second)
		first.stop()
		flipAll(t, path, "objects", "kns/a")
		advance(10 * time.Minute)
		if !second.cache.Status().MemoryOnly || lines.Load() > 2 {
			t.Errorf("in memory: %t, logged %d times", second.cache.Status().MemoryOnly, lines.Load())
		}
	})
}
