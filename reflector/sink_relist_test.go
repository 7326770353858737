package reflector

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/persist"
)

// damagedInformer finds damage while a relist is under way, unless it is whole.
type damagedInformer struct {
	silentInformer
	whole    bool
	relisted int
}

func (i *damagedInformer) RelistEnded(bool, error) bool { return i.whole }
func (i *damagedInformer) Relisted(Relisted)            { i.relisted++ }

func newConfigMap(name, rv string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: rv}}
}

// TestAFirstListThatHasLostObjectsIsNotComplete: the file was damaged while it was written, so the store
// may lack what the list has.
func TestAFirstListThatHasLostObjectsIsNotComplete(t *testing.T) {
	k, i := newSink(t), &damagedInformer{}
	k.informer = i
	finish := func() {
		t.Helper()
		r := relistOf(t, k, newConfigMap("a", "1"), newConfigMap("b", "2"), newConfigMap("c", "3"))
		_, err := r.finish("9")
		if err := errors.Join(err, k.Replace(nil, "9")); err != nil {
			t.Fatal(err)
		}
	}
	finish()
	if r := k.Checkpoint(); i.relisted > 0 || r.State != checkpoint.StateSyncing || r.ResourceVersion != "" {
		t.Errorf("relisted %d times, with the checkpoint %+v", i.relisted, r)
	}
	i.whole = true
	finish()
	if r := k.Checkpoint(); i.relisted != 1 || r.State != checkpoint.StateComplete || r.ResourceVersion != "9" {
		t.Errorf("relisted %d times, with the checkpoint %+v", i.relisted, r)
	}
	expectCounted(t, k, "a@1", "b@2", "c@3")
}

// expectCounted compares the objects, and their number with that in the state of the store.
func expectCounted(t *testing.T, k *Sink, want ...string) {
	t.Helper()
	k.indexer.Hide(false)
	var got []string
	for _, obj := range k.indexer.List() {
		cm := obj.(*corev1.ConfigMap)
		got = append(got, cm.Name+"@"+cm.ResourceVersion)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || !k.indexer.Complete() || k.indexer.Len() != len(want) {
		t.Errorf("the store has %v of %d, complete %t, expected %v", got, k.indexer.Len(), k.indexer.Complete(), want)
	}
}

// TestWhatIsPutByHandDuringAFirstListIsReplaced, with its index entries.
func TestWhatIsPutByHandDuringAFirstListIsReplaced(t *testing.T) {
	for _, budget := range []int64{1, indexer.DefaultMemoryBudget} {
		t.Run(fmt.Sprintf("a budget of %d bytes", budget), func(t *testing.T) {
			k := newSinkOf(t, indexer.NewObjects(budget))
			version := func(obj any) ([]string, error) { return []string{request.ItemOf(obj).ResourceVersion}, nil }
			if err := k.indexer.AddIndexers(cache.Indexers{"version": version}); err != nil {
				t.Fatal(err)
			}
			r := relistOf(t, k)
			k.indexer.Hide(false)
			if err := k.indexer.Add(newConfigMap("a", "1")); err != nil {
				t.Fatal(err)
			}
			k.indexer.Hide(true)
			for _, obj := range []*corev1.ConfigMap{newConfigMap("b", "2"), newConfigMap("c", "3"), newConfigMap("a", "4"), newConfigMap("d", "5")} {
				if err := r.item(obj); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := r.finish("9"); err != nil {
				t.Fatal(err)
			}
			expectCounted(t, k, "a@4", "b@2", "c@3", "d@5")
			if keys, err := k.indexer.IndexKeys("version", "1"); len(keys) > 0 || err != nil {
				t.Errorf("the old version is indexed: %v, %v", keys, err)
			}
		})
	}
}

// TestARelistWritesNothingAfterTheEnd: a List may hang beyond the end of its informer, and
// the next one uses the same space then.
func TestARelistWritesNothingAfterTheEnd(t *testing.T) {
	for name, call := range map[string]func(*relist) error{
		"an item": func(r *relist) error { return r.item(newConfigMap("a", "3")) },
		"a complete list": func(r *relist) error {
			_, err := r.finish("3")
			return err
		},
		"a list that is cut": func(r *relist) error { r.abort(); return errStopped },
	} {
		t.Run(name, func(t *testing.T) {
			for _, filled := range []bool{false, true} {
				k := newSink(t)
				if filled {
					if _, err := relistOf(t, k, newConfigMap("a", "1")).finish("1"); err != nil {
						t.Fatal(err)
					}
				}
				r := relistOf(t, k, newConfigMap("a", "2"), newConfigMap("b", "2"), newConfigMap("c", "2"))
				k.Stop()
				before := k.db.CommitSoon()
				if err := call(r); !errors.Is(err, errStopped) {
					t.Errorf("filled=%v: the error is %v", filled, err)
				}
				if n := k.db.CommitSoon() - before; n > 0 {
					t.Errorf("filled=%v: %d batches were written", filled, n)
				}
			}
		})
	}
}

// TestNoIndexVersionIsWrittenAfterTheEnd: an informer may end while indexers are added to it, and the
// next one uses the same space then.
func TestNoIndexVersionIsWrittenAfterTheEnd(t *testing.T) {
	k := newSink(t)
	if _, err := relistOf(t, k, newConfigMap("a", "1")).finish("1"); err != nil {
		t.Fatal(err)
	}
	for _, stopped := range []bool{false, true} {
		if stopped {
			k.Stop()
		}
		before := k.db.CommitSoon()
		if err := k.SetIndexVersion(func() string { return fmt.Sprint(stopped) }); err != nil {
			t.Fatal(err)
		}
		if written := k.db.CommitSoon() > before; written == stopped {
			t.Errorf("written: %v, after the end: %v", written, stopped)
		}
	}
}

// TestAFirstListIsWrittenAsItComes: little of it is in memory before it is written.
func TestAFirstListIsWrittenAsItComes(t *testing.T) {
	const objects, objectBytes, batch, mostPending = 200, 4 << 10, 10, 256 << 10
	list := func(k *Sink, each func(i int)) {
		r := relistOf(t, k)
		defer r.abort()
		for i := range objects {
			obj := newConfigMap(fmt.Sprintf("object-%03d", i), "1")
			obj.Data = map[string]string{"data": strings.Repeat("x", objectBytes)}
			if err := r.item(obj); err != nil {
				t.Fatal(err)
			}
			each(i)
		}
	}
	k := newSink(t, persist.Options{CommitInterval: time.Hour, MaxPendingBytes: mostPending})
	if err := k.db.Flush(); err != nil { // So that only batches of the list wait.
		t.Fatal(err)
	}
	list(k, func(i int) {
		batches := k.db.CommitSoon() - k.db.Durable() // One of them may have the checkpoint only.
		if waits := batches * batch * objectBytes; waits > mostPending/8+2*batch*objectBytes {
			t.Fatalf("after %d objects about %d bytes wait", i, waits)
		}
	})
	k = newSink(t)
	list(k, func(i int) {
		if held := (i + 1 - k.indexer.Len()) * objectBytes; held > silentBytes {
			t.Fatalf("%d objects are held, and %d were written", i+1-k.indexer.Len(), k.indexer.Len())
		}
	})
}

// TestAListWithoutAVersionLeavesNoOlderOne that the next process would resume at (A3): the watch from there would bring
// again what the list has, and not what was deleted before it.
func TestAListWithoutAVersionLeavesNoOlderOne(t *testing.T) {
	for _, rv := range []string{"", "0", "9"} {
		k := newSink(t)
		for _, listed := range []string{"5", rv} {
			if _, err := relistOf(t, k, newConfigMap("a", "3")).finish(listed); err != nil {
				t.Fatal(err)
			}
		}
		want := rv
		if rv == "0" {
			want = ""
		}
		if found := k.Checkpoint(); found.State != checkpoint.StateComplete || found.ResourceVersion != want {
			t.Errorf("after a list of version %q the checkpoint is %q, at %q", rv, found.State, found.ResourceVersion)
		}
	}
}

// TestAFirstListMayHaveAnObjectAgain: what it has said before is in the store, or is about to be. The last one
// counts.
func TestAFirstListMayHaveAnObjectAgain(t *testing.T) {
	a1, a2, b1, b2 := newConfigMap("a", "1"), newConfigMap("a", "2"), newConfigMap("b", "1"), newConfigMap("b", "2")
	for name, test := range map[string]struct {
		items []*corev1.ConfigMap
		want  map[string]string // The version by key.
	}{
		"in one batch": {items: []*corev1.ConfigMap{a1, a2}, want: map[string]string{"a": "2"}},
		"in two":       {items: []*corev1.ConfigMap{a1, b1, a2, b2}, want: map[string]string{"a": "2", "b": "2"}},
		"twice again":  {items: []*corev1.ConfigMap{a1, b1, a2, a1}, want: map[string]string{"a": "1", "b": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newSink(t)
			if err := k.indexer.AddIndexers(cache.Indexers{"version": func(obj any) ([]string, error) {
				return []string{obj.(*corev1.ConfigMap).ResourceVersion}, nil
			}}); err != nil {
				t.Fatal(err)
			}
			r := relistOf(t, k, test.items...)
			if _, err := r.finish("9"); err != nil {
				t.Fatal(err)
			}
			k.indexer.Hide(false)
			got := map[string]string{}
			for _, obj := range k.indexer.List() {
				got[obj.(*corev1.ConfigMap).Name] = obj.(*corev1.ConfigMap).ResourceVersion
			}
			if !maps.Equal(got, test.want) || k.indexer.Len() != len(test.want) {
				t.Errorf("%v, and a count of %d; expected %v", got, k.indexer.Len(), test.want)
			}
			for _, version := range []string{"1", "2"} {
				var want []string
				for key, of := range test.want {
					if of == version {
						want = append(want, key)
					}
				}
				if keys, err := k.indexer.IndexKeys("version", version); err != nil || !sets.New(keys...).Equal(sets.New(want...)) {
					t.Errorf("of version %s: %v, %v; expected %v", version, keys, err, want)
				}
			}
		})
	}
}
