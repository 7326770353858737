package warmwatch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

// leaveDeletions runs a process that leaves 150 objects, and as many deletions that its reconciler has not done.
func leaveDeletions(t *testing.T, path string, f *source) {
	t.Helper()
	var gone []string
	for i := range 150 {
		gone = append(gone, fmt.Sprintf("x%03d", i))
		f.put(configMap(gone[i]), configMap(fmt.Sprintf("y%03d", i)))
	}
	first := launch(t, path, f, nil)
	r := addReconcilerNamed(t, first, "r")
	r.set(nil)
	first.run()
	settle()
	r.set(fail)
	f.remove(gone...)
	settle()
	first.stop()
}

// TestDamageThatATakeoverMeetsIsRepaired, as at a start, and nobody is told twice of what the file owes.
func TestDamageThatATakeoverMeetsIsRepaired(t *testing.T) {
	for _, bucket := range []string{"deleted", "objects", "work"} {
		t.Run(bucket, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f, path := newSource(t, configMap("c")), testsupport.Path(t)
				leaveDeletions(t, path, f)
				_, hold := openQuietly(t, path)
				f.remove("c") // Nobody watches.
				second := launch(t, path, f, impatient)
				second.damaged = true
				durable := addDurable(t, second, "d")
				plain, _ := add(t, second.informer)
				addReconcilerNamed(t, second, "r")
				second.run()
				settle()
				plain.take()
				durable.take()
				hold()
				exchangeKeys(t, path, bucket)
				advance(10 * time.Minute)
				if st := second.cache.Status(); st.MemoryOnly || len(st.SetAside) != 1 {
					t.Errorf("in memory: %v, set aside %v: %v", st.MemoryOnly, st.SetAside, st.Err)
				}
				for _, r := range []*recorder{plain, durable} {
					if told := r.take(); len(told) != 1 || told[0] != "lost ns/c@1" {
						t.Errorf("told %d times: %.60q", len(told), told)
					}
				}
				expectStore(t, second.informer, f)
				second.stop()
			})
		})
	}
}

// exchangeKeys exchanges the second and the third key of a bucket, so that they are out of order.
func exchangeKeys(t *testing.T, path, bucket string) {
	t.Helper()
	var page int
	var keys [2][]byte
	inFile(t, path, func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
			b := space.Bucket([]byte(bucket))
			if b == nil || b.Root() == 0 {
				return nil
			}
			page = int(b.Root()) //nolint:gosec // The file is small.
			c := b.Cursor()
			_, _ = c.First()
			for i := range keys {
				key, _ := c.Next()
				keys[i] = bytes.Clone(key)
			}
			return nil
		})
	})
	changeInPlace(t, path, func(b []byte) {
		const flags, firstChild, isBranch = 8, 24, 1
		p := b[page*persist.PageBytes:]
		if p[flags] == isBranch {
			p = b[(int(p[firstChild])|int(p[firstChild+1])<<8)*persist.PageBytes:]
		}
		i, j := bytes.Index(p, keys[0]), bytes.Index(p, keys[1])
		if page == 0 || i < 0 || j < 0 || len(keys[0]) != len(keys[1]) {
			t.Fatalf("page %d has %q at %d and %q at %d", page, keys[0], i, keys[1], j)
		}
		copy(p[i:], keys[1])
		copy(p[j:], keys[0])
	})
}

// TestAWorkqueueOfATakenOverFileThatHasLostItemsSaysSo, as it would at a start (Q5). An item that is damaged, and
// known to the Codec, is believed.
func TestAWorkqueueOfATakenOverFileThatHasLostItemsSaysSo(t *testing.T) {
	flip := func(b *bolt.Bucket, key []byte) error {
		value := bytes.Clone(b.Get(key))
		value[0] ^= 1
		return b.Put(key, value)
	}
	for name, c := range map[string]struct {
		damage func(b *bolt.Bucket, key []byte) error
		known  bool // An earlier process knew of the damage.
		want   []string
	}{
		"damaged":            {damage: flip, want: []string{"first", "other", "second"}},
		"lost":               {damage: (*bolt.Bucket).Delete, want: []string{"other", "second"}},
		"lost, and known":    {damage: (*bolt.Bucket).Delete, known: true, want: []string{"other", "second"}},
		"nothing is damaged": {want: []string{"first", "other", "second"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f, path := newSource(t, configMap("a")), testsupport.Path(t)
				first := launch(t, path, f, nil).run()
				addItems(t, first, "shared", "first", "other")
				settle()
				first.stop()
				if c.damage != nil {
					change(t, path, "work", func(b *bolt.Bucket) error { return c.damage(b, []byte("k6/shared/first")) })
				}
				if c.known {
					first = launch(t, path, f, nil)
					if !addItems(t, first, "shared").Lost() {
						t.Error("at a start nothing is lost")
					}
					settle()
					first.stop()
				}
				_, hold := openQuietly(t, path)
				second := launch(t, path, f, impatient)
				q := addItems(t, second, "shared", "second")
				second.run()
				settle()
				hold()
				settle()
				if lost := c.damage != nil; q.Lost() != lost || second.cache.Status().MemoryOnly {
					t.Errorf("lost: %v, expected %v; in memory only: %v", q.Lost(), lost, second.cache.Status().MemoryOnly)
				}
				expectItems(t, q, c.want...)
				settle()
				q.ShutDown()
				second.stop()
				if lost := addItems(t, launch(t, path, f, nil), "shared").Lost(); lost != (c.damage != nil) {
					t.Errorf("lost in the next process: %v", lost)
				}
			})
		})
	}
}

// TestTheLatestStateOfADeletionIsReconciled, whichever of two processes has seen it (Q6).
func TestTheLatestStateOfADeletionIsReconciled(t *testing.T) {
	for _, behind := range []string{"the file", "memory", "memory, whose state is being reconciled"} {
		t.Run(behind, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				path := testsupport.Path(t)
				sources := []*source{newSource(t, configMap("a"), configMap("b")), newSource(t, configMap("a"), configMap("b"))} // The same server.
				first := launch(t, path, sources[0], nil)
				second := launch(t, path, sources[1], impatient)
				var ws []*works
				for _, p := range []*process{first, second} {
					w := addReconcilerNamed(t, p, "r")
					w.set(nil)
					p.run()
					settle()
					w.expect(t, "ns/a@1", "ns/b@2")
					w.set(fail)
					ws = append(ws, w)
				}
				away := sources[1] // It has no connection while the object changes.
				if behind == "the file" {
					away = sources[0]
				}
				away.setDown(errUnreachable)
				away.closeWatches()
				for _, f := range sources {
					f.put(configMap("b", "latest"))
					f.remove("b")
				}
				away.compact()
				settle()
				away.setDown(nil)
				settle()
				if !second.cache.Status().MemoryOnly {
					t.Error("the second process has the file")
				}
				want := []string{"ns/b is gone, deleted ns/b@4"}
				if strings.HasSuffix(behind, "is being reconciled") {
					want = append(want, "ns/b is gone, deleted ns/b@2")
					takenOver := make(chan struct{})
					ws[1].set(func(context.Context, string) error { <-takenOver; return nil })
					advance(time.Hour) // Until it is tried again.
					first.stop()
					settle()
					close(takenOver)
				}
				first.stop()
				settle()
				ws[1].set(nil)
				advance(time.Hour)
				ws[1].expect(t, want...)
			})
		})
	}
}

// flipAll damages each value of a bucket whose key begins like this.
func flipAll(t *testing.T, path, bucket, prefix string) {
	t.Helper()
	change(t, path, bucket, func(b *bolt.Bucket) error {
		damaged := map[string][]byte{}
		err := b.ForEach(func(key, value []byte) error {
			if bytes.HasPrefix(key, []byte(prefix)) {
				damaged[string(key)] = bytes.Clone(value)
			}
			return nil
		})
		for key, value := range damaged {
			value[0] ^= 1
			err = errors.Join(err, b.Put([]byte(key), value))
		}
		return err
	})
}

// TestAWorkqueueThatADamagedFileHasNothingOfSaysSo, where a takeover meets the damage, and later (Q5).
func TestAWorkqueueThatADamagedFileHasNothingOfSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t), testsupport.Path(t)
		for i := range 150 {
			f.put(configMap(fmt.Sprintf("y%03d", i)))
		}
		first := launch(t, path, f, nil).run()
		addItems(t, first, "shared", "first", "other")
		settle()
		first.stop()
		flipAll(t, path, "work", "k6/shared")
		flipAll(t, path, "workqueues", "kshared")
		_, hold := openQuietly(t, path)
		second := launch(t, path, f, impatient)
		second.damaged = true
		q := addItems(t, second, "shared", "second")
		second.run()
		settle()
		hold()
		exchangeKeys(t, path, "objects")
		settle()
		if !q.Lost() || !addItems(t, second, "later").Lost() || second.cache.Status().MemoryOnly {
			t.Errorf("lost: %t, in memory: %t", q.Lost(), second.cache.Status().MemoryOnly)
		}
		second.stop()
		if !addItems(t, launch(t, path, f, nil), "shared").Lost() {
			t.Error("the next process does not know of it")
		}
	})
}

// TestAReconcilerOfATakenOverFileHasLostNothing: it was told of all objects meanwhile.
func TestAReconcilerOfATakenOverFileHasLostNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, configMap("a"), configMap("b"), configMap("c")), testsupport.Path(t)
		first := launch(t, path, f, nil)
		addReconcilerNamed(t, first, "r")
		first.run()
		settle()
		first.stop()
		change(t, path, "work", func(b *bolt.Bucket) error { return b.Delete([]byte("k1/r/ns/b")) })
		flipAll(t, path, "work", "k")
		_, hold := openQuietly(t, path)
		second := launch(t, path, f, impatient)
		second.damaged = true
		w := addReconciler(t, second, 1)
		second.run()
		settle()
		w.expect(t, "ns/a@1", "ns/b@2", "ns/c@3")
		hold()
		advance(time.Hour)
		w.expectEach(t, "", "ns/a@1", "ns/c@3") // The keys that the file has.
		second.stop()
		third := launch(t, path, f, nil)
		w = addReconciler(t, third, 1)
		third.run()
		settle()
		w.expect(t)
	})
}

// TestANameThatComesBetweenTwoAttemptsOfATakeoverIsToldOfWhatTheFirstHasTold: another process had the file (Q2).
func TestANameThatComesBetweenTwoAttemptsOfATakeoverIsToldOfWhatTheFirstHasTold(t *testing.T) {
	for _, here := range []string{"after the second attempt", "before the second attempt", "all along", "all along, and an informer is made"} {
		t.Run("it has a handler here "+here, func(t *testing.T) {
			bubble(t, func(t *testing.T) { checkNameBetweenTwoAttempts(t, here) })
		})
	}
}

func checkNameBetweenTwoAttempts(t *testing.T, here string) {
	path := testsupport.Path(t)
	sources := []*source{newSource(t, configMap("c")), newSource(t, configMap("c"))} // The same server.
	var gone []string
	for i := range 150 {
		gone = append(gone, fmt.Sprintf("x%03d", i))
		for _, f := range sources {
			f.put(configMap(gone[i]), configMap(fmt.Sprintf("y%03d", i)))
		}
	}
	first := launch(t, path, sources[0], nil)
	r := addReconcilerNamed(t, first, "r")
	r.set(nil)
	addDurable(t, first, "e")
	first.run()
	settle()
	r.set(fail)
	for _, f := range sources {
		f.remove(gone...)
	}
	settle()
	first.stop()

	_, hold := openQuietly(t, path)
	sources[1].remove("c") // The third process has no connection.
	second := launch(t, path, sources[1], impatient)
	second.damaged = true
	var e *recorder
	if strings.HasPrefix(here, "all along") {
		e = addDurable(t, second, "e")
	}
	plain, _ := add(t, second.informer)
	addReconciler(t, second, 1)
	second.run()
	settle()
	plain.take()
	hold()
	exchangeKeys(t, path, "deleted")
	inTheWay := path + ".finished" // The file cannot be replaced.
	if err := os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	advance(10 * time.Minute)
	plain.expect(t, "lost ns/c@1")
	if !second.cache.Status().MemoryOnly {
		t.Error("the second process has the file")
	}
	if err := os.RemoveAll(inTheWay); err != nil {
		t.Fatal(err)
	}

	sources[0].setDown(errUnreachable)
	third := launch(t, path, sources[0], impatient)
	third.damaged = true
	if err := third.informer.ForgetDurableEventHandler("e"); err != nil {
		t.Fatal(err)
	}
	third.run()
	inTheThird := addDurable(t, third, "e")
	settle()
	if !slices.Contains(inTheThird.take(), "add ns/c@1 initial") {
		t.Error("the third process did not tell its handler of c")
	}
	if here == "before the second attempt" {
		e = addDurable(t, second, "e")
		settle()
	}
	if e != nil {
		e.take()
	}
	if strings.HasSuffix(here, "an informer is made") {
		made := second.cache.MakeInformer() // The next attempt fails at once.
		third.stop()
		advance(1500 * time.Millisecond)
		made()
	}
	third.stop()
	settle()
	if st := second.cache.Status(); st.MemoryOnly {
		t.Errorf("the second process has not taken the file over: %v", st.Err)
	}
	if e == nil {
		e = addDurable(t, second, "e")
		settle()
	}
	if !slices.Contains(e.take(), "lost ns/c@1") {
		t.Error("a handler that knows c is not told that it is gone")
	}
}

// TestAnInformerTakesAFileOverWhileEventsCome, which wait for room once there is a file.
func TestAnInformerTakesAFileOverWhileEventsCome(t *testing.T) {
	f, path := newSource(t, configMap("a")), testsupport.Path(t)
	_, release := openQuietly(t, path)
	second := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
		o.LockTimeout, o.MaxPendingBytes, o.Logger = time.Millisecond, 1<<10, &testsupport.Quiet
	})
	err := second.informer.SetTransform(func(obj any) (any, error) {
		for i := 0; i < 30 && second.cache.Status().MemoryOnly; i++ { // It is called with the lock of the store, so that an event waits at that moment.
			time.Sleep(time.Millisecond)
		}
		return obj, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		second.informer.Run(stop)
	}()
	second.end = func() { close(stop); <-stopped }
	until(second.informer.HasSynced)
	for i := range 50 {
		f.put(configMap(fmt.Sprintf("o%02d", i), strings.Repeat("x", 100)))
	}
	release()
	for i := 0; second.cache.Status().MemoryOnly; i++ {
		f.put(configMap(fmt.Sprintf("o%02d", i%50), fmt.Sprint(i)))
		time.Sleep(time.Millisecond)
	}
	f.put(configMap("last"))
	until(func() bool {
		_, exists, err := second.informer.GetStore().GetByKey("ns/last")
		return exists && err == nil
	})
}
