package warmwatch_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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
		if !ok || keyOf(cm) != lost.Key || cm.UID == "" || cm.ResourceVersion == "" {
			b.t.Errorf("a tombstone of %q with %#v", lost.Key, obj)
		}
	}
	key, rv := keyOf(obj), accessor(obj).GetResourceVersion()
	b.events = append(b.events, what+" "+version(obj))
	if len(rv) < len(b.told[key]) || (len(rv) == len(b.told[key]) && rv < b.told[key]) {
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

// next begins another life and returns what was told in the last one.
func (b *belief) next() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := b.events
	b.events, b.told, b.hang = nil, map[string]string{}, nil
	return events
}

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

// untold is a file with deltas that two durable handlers, "d" and "e", have not been
// told: of twelve objects, of which the first four were deleted, the next four changed,
// and four are new. "d" has heard of none of that, "e" of all.
type untold struct {
	f    *source
	path string
	d, e *belief
}

func newUntold(t *testing.T) untold {
	t.Helper()
	u := untold{f: newSource(t), path: testsupport.Path(t), d: newBelief(t), e: newBelief(t)}
	for i := range 8 {
		u.f.put(configMap(fmt.Sprintf("o%02d", i), "x"))
	}
	p := u.launch(t)
	p.run()
	settle()
	u.d.expect(t, u.f)
	hang := make(chan struct{})
	u.d.mu.Lock()
	u.d.hang = hang
	u.d.mu.Unlock()
	for i := range 4 {
		u.f.remove(fmt.Sprintf("o%02d", i))
	}
	for i := range 8 {
		u.f.put(configMap(fmt.Sprintf("o%02d", i+4), strings.Repeat("y", 1000)))
	}
	settle()
	u.e.expect(t, u.f)
	// The handler hangs until the process is killed.
	crashed := p.crash()
	known := maps.Clone(u.d.objects)
	close(hang)
	p.stop()
	u.d.objects, u.path = known, crashed
	u.d.next()
	u.e.next()
	return u
}

func (u untold) launch(t *testing.T) *process {
	t.Helper()
	p := launch(t, u.path, u.f, withContentIndex)
	for name, b := range map[string]*belief{"d": u.d, "e": u.e} {
		if _, err := p.informer.AddDurableEventHandler(name, b); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// inSpace changes the only space of a file.
func inSpace(t *testing.T, path string, change func(*bolt.Bucket) error) {
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

// TestWhatALostDeltaWouldHaveSaidIsToldAnotherWay: each delta in turn, and all of
// them, cannot be read, or vanish.
func TestWhatALostDeltaWouldHaveSaidIsToldAnotherWay(t *testing.T) { // D3
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
		k[6] ^= 0x40
		return b.Put(k, v)
	}
	cut := func(b *bolt.Bucket, k []byte) error { // Likewise, and it is no key at all.
		v := slices.Clone(b.Get(k))
		if err := b.Delete(k); err != nil {
			return err
		}
		return b.Put(k[:5], v)
	}
	for name, damage := range map[string]func(*bolt.Bucket, []byte) error{"unreadable": flip, "gone": vanish, "under another key": rename, "under no key": cut} {
		for n := range 13 {
			t.Run(fmt.Sprintf("%s: %d", name, n), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					u := newUntold(t)
					inSpace(t, u.path, func(space *bolt.Bucket) error {
						deltas := space.Bucket([]byte("deltas"))
						keys := keysOf(deltas)
						if len(keys) != 12 {
							return fmt.Errorf("%d deltas wait", len(keys))
						}
						if n < 12 {
							keys = keys[n : n+1]
						}
						for _, k := range keys {
							if err := damage(deltas, k); err != nil {
								return err
							}
						}
						return nil
					})
					u.expectHealed(t, true)
				})
			})
		}
	}
}

// expectHealed starts the informer, and wants both handlers to believe in what the
// server has; "e", which nothing is lost for, is to be told of nothing.
func (u untold) expectHealed(t *testing.T, undisturbed bool) {
	t.Helper()
	p := u.launch(t)
	p.damaged = true
	p.run()
	settle()
	u.d.expect(t, u.f)
	u.e.expect(t, u.f)
	if told := u.e.next(); undisturbed && len(told) > 0 {
		t.Errorf("a handler that nothing is lost for was told %q", told)
	}
	if st := p.informer.Status(); st.Err != nil || st.Relists < 1 || st.Relists > 2 { // What is found later is another reason.
		t.Errorf("status %+v", st)
	}
	u.f.put(configMap("new"))
	u.f.remove("o05")
	settle()
	u.d.expect(t, u.f)
	u.e.expect(t, u.f)
	p.stop()
	u.d.next()
	u.e.next()
	p = u.launch(t) // And that is the end of it.
	p.damaged = true
	p.run()
	settle()
	if told := append(u.d.next(), u.e.next()...); len(told) > 0 {
		t.Errorf("in the next life they were told %q", told)
	}
	if st := p.informer.Status(); st.Err != nil || st.Relists != 0 {
		t.Errorf("status %+v", st)
	}
	p.stop()
}

// TestADamagedCursorCostsItsHandlerOnly: it is told everything again, deletions
// included. So is one whose cursor is not there any more.
func TestADamagedCursorCostsItsHandlerOnly(t *testing.T) {
	for name, damage := range map[string]func(*bolt.Bucket) error{
		"unreadable": func(b *bolt.Bucket) error {
			v := slices.Clone(b.Get([]byte("kdurable/d")))
			v[7] ^= 1
			return b.Put([]byte("kdurable/d"), v)
		},
		"gone": func(b *bolt.Bucket) error { return b.Delete([]byte("kdurable/d")) },
		"under another name": func(b *bolt.Bucket) error {
			v := slices.Clone(b.Get([]byte("kdurable/d")))
			if err := b.Delete([]byte("kdurable/d")); err != nil {
				return err
			}
			return b.Put([]byte("kdurable/D"), v)
		},
		"under no name": func(b *bolt.Bucket) error {
			v := slices.Clone(b.Get([]byte("kdurable/d")))
			if err := b.Delete([]byte("kdurable/d")); err != nil {
				return err
			}
			return b.Put([]byte("kdu"), v)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				u := newUntold(t)
				inSpace(t, u.path, func(space *bolt.Bucket) error { return damage(space.Bucket([]byte("cursors"))) })
				u.expectHealed(t, true)
				inFile(t, u.path, func(tx *bolt.Tx) error {
					return tx.ForEach(func(_ []byte, b *bolt.Bucket) error {
						if n := len(keysOf(b.Bucket([]byte("deltas")))); n > 0 {
							t.Errorf("%d deltas are held for nobody", n)
						}
						return nil
					})
				})
			})
		})
	}
}

// TestADamagedStateCostsNobodyHisDeltas: neither the store's nor the queue's.
func TestADamagedStateCostsNobodyHisDeltas(t *testing.T) {
	for _, bucket := range []string{"store", "queue"} {
		t.Run(bucket, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				u := newUntold(t)
				changeValue(t, u.path, bucket, "state", func(v []byte) { v[len(v)-1] ^= 1 })
				p := u.launch(t)
				p.damaged = true
				p.run()
				settle()
				var want []string
				for _, e := range u.f.history[8:] {
					what := map[bool]string{true: "add", false: "update"}[accessor(e.Object).GetName() >= "o08"]
					if accessor(e.Object).GetName() < "o04" {
						what = "delete"
					}
					want = append(want, what+" "+version(e.Object))
				}
				if diff := cmp.Diff(want, u.d.next()); diff != "" {
					t.Errorf("told (-want +got):\n%s", diff)
				}
				if told := u.e.next(); len(told) > 0 {
					t.Errorf("a handler that nothing is lost for was told %q", told)
				}
				u.d.expect(t, u.f)
				expectEqual(t, p.informer, u.f)
				if st := p.informer.Status(); st.Err != nil || st.Relists != 1 {
					t.Errorf("status %+v", st)
				}
				for range 3 { // Numbers must not have gone back.
					u.f.put(configMap("o04"), configMap("new"))
					u.f.remove("new")
					settle()
				}
				u.d.expect(t, u.f)
				u.e.expect(t, u.f)
			})
		})
	}
}

// TestACursorThatIsLostWithTheStateOfItsQueue: the handler counts as a new one, and is told of the
// deletions that the relist after the damage finds.
func TestACursorThatIsLostWithTheStateOfItsQueue(t *testing.T) { // D2
	for name, damage := range map[string]func(queue *bolt.Bucket) error{
		"damaged": func(queue *bolt.Bucket) error {
			v := slices.Clone(queue.Get([]byte("kstate")))
			v[0] ^= 1
			return queue.Put([]byte("kstate"), v)
		},
		"gone": func(queue *bolt.Bucket) error { return queue.Delete([]byte("kstate")) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				p := launch(t, testsupport.Path(t), f, nil)
				addDurable(t, p, "d")
				addDurable(t, p, "e")
				p.run()
				settle()
				p.stop()
				inSpace(t, p.path, func(space *bolt.Bucket) error {
					return errors.Join(damage(space.Bucket([]byte("queue"))), space.Bucket([]byte("cursors")).Delete([]byte("kdurable/d")))
				})
				f.remove("a")
				f.compact()
				p = launch(t, p.path, f, nil)
				p.damaged = true
				d := addDurable(t, p, "d")
				p.run()
				settle()
				if got := d.take(); !slices.Contains(got, "lost ns/a@1") {
					t.Errorf("told %q", got)
				}
			})
		})
	}
}

// TestDeltasThatAreLostInUse: the file loses deltas of an earlier process while a handler,
// durable or plain, hangs.
func TestDeltasThatAreLostInUse(t *testing.T) {
	for _, durable := range []bool{true, false} {
		t.Run(fmt.Sprintf("durable=%v", durable), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t)
				for i := range 8 {
					f.put(configMap(fmt.Sprintf("o%02d", i)))
				}
				path := testsupport.Path(t)
				p := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.CommitInterval = time.Second })
				p.damaged = true
				b := newBelief(t)
				var err error
				if durable {
					_, err = p.informer.AddDurableEventHandler("d", b)
				} else {
					_, err = p.informer.AddEventHandler(b)
				}
				if err != nil {
					t.Fatal(err)
				}
				p.run()
				settle()
				hang := make(chan struct{})
				b.mu.Lock()
				b.hang = hang
				b.mu.Unlock()
				f.remove("o01")
				settle() // It hangs in this one.
				big := strings.Repeat("x", 1<<20)
				f.put(configMap("o02", big))
				f.remove("o03")
				f.put(configMap("o04", big), configMap("new"))
				f.remove("o05")
				for i := range 20 { // Drives the others out of memory.
					f.put(configMap("large", big+fmt.Sprint(i)))
				}
				settle()
				clearDeltas(t, path)
				b.mu.Lock()
				b.hang = nil
				b.mu.Unlock()
				close(hang)
				settle()
				b.expect(t, f)
				f.put(configMap("o02"))
				settle()
				b.expect(t, f)
			})
		})
	}
}

// TestAListThatHasLeftSomethingOutIsDoneOnceThatIsTold: an orderly restart then tells nothing again.
func TestAListThatHasLeftSomethingOutIsDoneOnceThatIsTold(t *testing.T) {
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
		durable.expect(t, "add ns/a@1 initial")
		f.setDown(nil)
		settle()
		durable.expect(t, "lost ns/b", "add ns/b@2")
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

func clearDeltas(t *testing.T, path string) {
	t.Helper()
	n := 0
	changeInPlace(t, path, func(b []byte) {
		for at := 0; ; at++ {
			i := strings.Index(string(b[at:min(len(b), at+4<<20)]), "\aUpdated")
			if i < 0 {
				if at += 4 << 20; at >= len(b) {
					break
				}
				at -= 8
				continue
			}
			at += i
			b[at+1] ^= 1
			n++
		}
		for at := 0; at < len(b); {
			i := strings.Index(string(b[at:min(len(b), at+4<<20)]), "\aDeleted")
			if i < 0 {
				at += 4<<20 - 8
				continue
			}
			at += i + 1
			b[at] ^= 1
			n++
		}
	})
	if n == 0 {
		t.Fatal("there are no deltas")
	}
	synctest.Wait()
}
