package warmwatch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"

	bolt "go.etcd.io/bbolt"
)

// belief is a handler that keeps what it was told of, by key, over the lives of
// processes. Tombstones must say which object they are of.
type belief struct {
	t *testing.T

	mu      sync.Mutex
	objects map[string]string // Key to resourceVersion.
	told    map[string]string // Key to the last resourceVersion told in this life (D2).
	events  []string
	hang    chan struct{} // Not nil: each call waits for it.
	// forgiving: an older version may be told again.
	forgiving bool
}

func newBelief(t *testing.T) *belief {
	return &belief{t: t, objects: map[string]string{}, told: map[string]string{}}
}

func (b *belief) note(what string, obj any, exists bool) {
	b.mu.Lock()
	hang := b.hang
	b.mu.Unlock()
	if hang != nil {
		<-hang
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = lost.Obj
		cm, ok := obj.(*corev1.ConfigMap)
		if obj == nil {
			b.events = append(b.events, what+" "+lost.Key)
			delete(b.objects, lost.Key)
			return
		}
		if !ok || keyOf(cm) != lost.Key || cm.UID == "" || cm.ResourceVersion == "" {
			b.t.Errorf("a tombstone of %q with %#v", lost.Key, obj)
		}
	}
	key, rv := keyOf(obj), accessor(obj).GetResourceVersion()
	b.events = append(b.events, what+" "+version(obj))
	if !b.forgiving && (len(rv) < len(b.told[key]) || len(rv) == len(b.told[key]) && rv < b.told[key]) {
		b.t.Errorf("D2: %s@%s after @%s", key, rv, b.told[key])
	}
	b.told[key] = rv
	if exists {
		b.objects[key] = rv
	} else {
		delete(b.objects, key)
	}
}

func (b *belief) OnAdd(obj any, _ bool) { b.note("add", obj, true) }
func (b *belief) OnUpdate(_, obj any)   { b.note("update", obj, true) }
func (b *belief) OnDelete(obj any)      { b.note("delete", obj, false) }

func (b *belief) expect(t *testing.T, f *source) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	want := map[string]string{}
	for key, obj := range f.objects {
		want[key] = accessor(obj).GetResourceVersion()
	}
	if diff := cmp.Diff(want, b.objects); diff != "" {
		t.Errorf("the handler believes in something else (-source +handler):\n%s\ntold: %q", diff, b.events)
	}
}

// addKnowing adds a durable handler, and a reconciler, that say what they know.
func (b *belief) addKnowing(t *testing.T, p *process, made map[string]string) {
	t.Helper()
	known := func(objects map[string]string) func(context.Context) ([]cache.ObjectName, error) {
		return func(context.Context) (keys []cache.ObjectName, err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			for text := range objects {
				key, err := cache.ParseObjectName(text)
				if err != nil {
					return nil, err
				}
				keys = append(keys, key)
			}
			return keys, nil
		}
	}
	reconcile := func(_ context.Context, req warmwatch.ReconcileRequest) (result warmwatch.ReconcileResult, err error) {
		obj, exists, err := p.informer.GetStore().GetByKey(req.String())
		b.mu.Lock()
		defer b.mu.Unlock()
		if delete(made, req.String()); exists {
			made[req.String()] = accessor(obj).GetResourceVersion()
		}
		return result, err
	}
	if _, err := p.informer.AddDurableEventHandler("d", b, warmwatch.DurableOptions{Known: known(b.objects)}); err != nil {
		t.Fatal(err)
	}
	o := sameEpoch()
	o.Known = known(made)
	if _, err := p.informer.AddReconciler("r", reconcile, o); err != nil {
		t.Fatal(err)
	}
}

// TestWhoSaysWhatHeKnowsIsToldTheTruthWhateverIsDamaged (D3, D4): each value of each bucket in turn is damaged, or
// vanishes, while deltas and work wait. What does not concern a handler costs it nothing.
func TestWhoSaysWhatHeKnowsIsToldTheTruthWhateverIsDamaged(t *testing.T) {
	flip := func(b *bolt.Bucket, k []byte) error {
		v := slices.Clone(b.Get(k))
		v[len(v)/2] ^= 1
		return b.Put(k, v)
	}
	vanish := func(b *bolt.Bucket, k []byte) error { return b.Delete(k) }
	rename := func(b *bolt.Bucket, k []byte) error { // The key is damaged.
		v := slices.Clone(b.Get(k))
		if err := b.Delete(k); err != nil {
			return err
		}
		k = slices.Clone(k)
		k[len(k)-1] ^= 0x40
		return b.Put(k, v)
	}
	for name, damage := range map[string]func(*bolt.Bucket, []byte) error{"unreadable": flip, "gone": vanish, "under another key": rename} {
		for n, more := 0, true; more; n += testsupport.Rounds(1, 5) {
			t.Run(fmt.Sprintf("%s: %d", name, n), func(t *testing.T) {
				bubble(t, func(t *testing.T) { more = whoSaysWhatHeKnows(t, damage, n) })
			})
		}
	}
}

func whoSaysWhatHeKnows(t *testing.T, damage func(*bolt.Bucket, []byte) error, n int) (more bool) {
	f, path := newSource(t), testsupport.Path(t)
	for i := range 6 {
		f.put(configMap(fmt.Sprint("o", i), "x"))
	}
	b, made := newBelief(t), map[string]string{}
	b.forgiving = true
	p := launch(t, path, f, withContentIndex)
	b.addKnowing(t, p, made)
	p.run()
	settle()
	b.expect(t, f)
	hang := make(chan struct{})
	b.mu.Lock() // What comes is told and reconciled only by the next process.
	b.hang = hang
	b.mu.Unlock()
	for i := range 3 {
		f.remove(fmt.Sprint("o", i))
	}
	f.put(configMap("o0", "again"), configMap("o4", "changed"), configMap("new", "zero"))
	settle()
	crashed := p.crash()
	b.mu.Lock()
	knew, had := maps.Clone(b.objects), maps.Clone(made)
	b.mu.Unlock()
	close(hang)
	p.stop()
	b = newBelief(t)
	b.forgiving, b.objects = true, knew
	changeSpaces(t, crashed, func(space *bolt.Bucket) error {
		return space.ForEachBucket(func(name []byte) error {
			bucket := space.Bucket(name)
			for _, k := range keysOf(bucket) {
				if n--; n == -1 {
					more = true
					t.Logf("bucket %s, key %q", name, k)
					return damage(bucket, k)
				}
			}
			return nil
		})
	})
	for _, life := range []string{"first", "second"} {
		p = launch(t, crashed, f, withContentIndex)
		p.damaged = true
		b.addKnowing(t, p, had)
		p.run()
		settle()
		advance(time.Minute)
		b.expect(t, f)
		b.mu.Lock()
		if diff := cmp.Diff(b.objects, had); diff != "" {
			t.Errorf("%s life: what is reconciled differs (-handler +reconciler):\n%s", life, diff)
		}
		b.mu.Unlock()
		expectEqual(t, p.informer, f)
		f.put(configMap("new", life))
		f.remove(map[string]string{"first": "o3", "second": "o5"}[life])
		settle()
		b.expect(t, f)
		p.stop()
		if st := p.informer.Status(); life == "second" && (st.Err != nil || st.Relists > 0) {
			t.Errorf("second life: %+v", st)
		}
	}
	return more
}

// changeSpaces changes the spaces of informers in a file that is not open.
func changeSpaces(t *testing.T, path string, change func(*bolt.Bucket) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			if string(name) == "warmwatch" {
				return nil
			}
			return change(b)
		})
	}); err != nil {
		t.Fatal(err)
	}
}

func keysOf(b *bolt.Bucket) (keys [][]byte) {
	if b == nil {
		return nil
	}
	c := b.Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		keys = append(keys, slices.Clone(k))
	}
	return keys
}

// TestAListWaitsForWhatCannotBeRead, until a relist has brought it.
func TestAListWaitsForWhatCannotBeRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, configMap("a"), configMap("b", "needle")), testsupport.Path(t)
		p := launch(t, path, f, nil)
		p.run()
		settle()
		p.stop()

		flipBits(t, path, "needle")
		f.setDown(errors.New("connection refused"))
		p = launch(t, path, f, nil)
		p.damaged = true
		durable := addDurable(t, p, "d")
		p.run()
		settle()
		durable.expect(t)
		f.setDown(nil)
		settle()
		advance(time.Second)
		durable.expect(t, "lost ns/b", "add ns/a@1 initial", "add ns/b@2 initial")
		p.stop()

		p = launch(t, path, f, nil)
		durable = addDurable(t, p, "d")
		p.run()
		settle()
		durable.expect(t)
	})
}

// flipBits inverts the first byte of a text wherever a file has it. Doing it again restores
// the file.
func flipBits(t *testing.T, path, text string) {
	t.Helper()
	b := testsupport.ReadUsed(t, path)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rest := []byte(text[1:])
	for at := 1; ; at++ {
		next := bytes.Index(b[at:], rest)
		if next < 0 {
			return
		}
		at += next
		if first := b[at-1]; first == text[0] || first == ^text[0] {
			if _, err := f.WriteAt([]byte{^first}, int64(at-1)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// changeBucket changes a bucket of informers in a file that is not open.
func changeBucket(t *testing.T, path, bucket string, change func(*bolt.Bucket) error) {
	t.Helper()
	changeSpaces(t, path, func(space *bolt.Bucket) error {
		if b := space.Bucket([]byte(bucket)); b != nil {
			return change(b)
		}
		return nil
	})
}
