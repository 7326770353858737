package life_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/cachefile"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// addKnowing adds a durable handler, and a reconciler, that say what they know.
func addKnowing(b *recorder.Belief, t *testing.T, p *process.Process, made map[string]string) {
	t.Helper()
	known := func(objects map[string]string) func(context.Context) ([]cache.ObjectName, error) {
		return func(context.Context) (keys []cache.ObjectName, err error) {
			b.Mu.Lock()
			defer b.Mu.Unlock()
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
		obj, exists, err := p.Informer.GetStore().GetByKey(req.String())
		b.Mu.Lock()
		defer b.Mu.Unlock()
		if delete(made, req.String()); exists {
			made[req.String()] = source.Meta(obj).GetResourceVersion()
		}
		return result, err
	}
	if _, err := p.Informer.AddDurableEventHandler("d", b, warmwatch.DurableOptions{Known: known(b.Objects)}); err != nil {
		t.Fatal(err)
	}
	o := sameEpoch()
	o.Known = known(made)
	if _, err := p.Informer.AddReconciler("r", reconcile, o); err != nil {
		t.Fatal(err)
	}
}

// TestWhoSaysWhatHeKnowsGetsTheTruthWhateverIsDamaged (D3, D4): each value of each bucket in turn is damaged, or
// vanishes, while deltas and work wait. What does not concern a handler costs it nothing.
func TestWhoSaysWhatHeKnowsGetsTheTruthWhateverIsDamaged(t *testing.T) {
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
				bubble.Run(t, func(t *testing.T) { more = whoSaysWhatHeKnows(t, damage, n) })
			})
		}
	}
}

func whoSaysWhatHeKnows(t *testing.T, damage func(*bolt.Bucket, []byte) error, n int) (more bool) {
	f, path := source.New(t), testsupport.Path(t)
	for i := range 6 {
		f.Put(source.ConfigMap(fmt.Sprint("o", i), "x"))
	}
	b, made := recorder.NewBelief(t), map[string]string{}
	b.Forgiving = true
	p := process.Launch(t, path, f, process.ByContent)
	addKnowing(b, t, p, made)
	p.Run()
	bubble.Settle()
	b.Expect(t, f)
	hang := make(chan struct{})
	b.Mu.Lock() // What comes is delivered and reconciled only by the next process.
	b.Hang = hang
	b.Mu.Unlock()
	for i := range 3 {
		f.Remove(fmt.Sprint("o", i))
	}
	f.Put(source.ConfigMap("o0", "again"), source.ConfigMap("o4", "changed"), source.ConfigMap("new", "zero"))
	bubble.Settle()
	crashed := p.Crash()
	b.Mu.Lock()
	knew, had := maps.Clone(b.Objects), maps.Clone(made)
	b.Mu.Unlock()
	close(hang)
	p.Stop()
	b = recorder.NewBelief(t)
	b.Forgiving, b.Objects = true, knew
	cachefile.Change(t, crashed, func(space *bolt.Bucket) error {
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
		p = process.Launch(t, crashed, f, process.ByContent)
		p.Damaged = true
		addKnowing(b, t, p, had)
		p.Run()
		bubble.Settle()
		bubble.Advance(time.Minute)
		b.Expect(t, f)
		b.Mu.Lock()
		if diff := cmp.Diff(b.Objects, had); diff != "" {
			t.Errorf("%s life: what is reconciled differs (-handler +reconciler):\n%s", life, diff)
		}
		b.Mu.Unlock()
		process.ExpectEqual(t, p.Informer, f)
		f.Put(source.ConfigMap("new", life))
		f.Remove(map[string]string{"first": "o3", "second": "o5"}[life])
		bubble.Settle()
		b.Expect(t, f)
		p.Stop()
		if st := p.Informer.Status(); life == "second" && (st.Err != nil || st.Relists > 0) {
			t.Errorf("second life: %+v", st)
		}
	}
	return more
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
	bubble.Run(t, func(t *testing.T) {
		f, path := source.New(t, source.ConfigMap("a"), source.ConfigMap("b", "needle")), testsupport.Path(t)
		p := process.Launch(t, path, f, nil)
		p.Run()
		bubble.Settle()
		p.Stop()

		cachefile.FlipBits(t, path, "needle")
		f.SetDown(errors.New("connection refused"))
		p = process.Launch(t, path, f, nil)
		p.Damaged = true
		durable := process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		durable.Expect(t)
		f.SetDown(nil)
		bubble.Settle()
		bubble.Advance(time.Second)
		durable.Expect(t, "lost ns/b", "add ns/a@1 initial", "add ns/b@2 initial")
		p.Stop()

		p = process.Launch(t, path, f, nil)
		durable = process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		durable.Expect(t)
	})
}
