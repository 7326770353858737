package warmwatch_test

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// TestADurableHandlerOutlivesAFileThatIsFoundDamagedAtAStart: its cursor and
// its deltas are salvaged. So it is told of objects that were deleted while nothing
// watched (Q2), and is not told again of those that it knows.
func TestADurableHandlerOutlivesAFileThatIsFoundDamagedAtAStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
		path := testsupport.Path(t)
		p := launch(t, path, f, nil)
		release := make(chan struct{})
		r := &recorder{during: func(event string) {
			if strings.HasPrefix(event, "update") {
				<-release
			}
		}}
		if _, err := p.informer.AddDurableEventHandler("d", r); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		r.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
		f.put(configMap("a", "x"))
		synctest.Wait()
		f.remove("c") // It is not told of this, either.
		settle()
		crashed := p.crash()
		close(release)
		p.stop()

		damageFreelist(t, crashed)
		f.remove("b")
		p = launch(t, crashed, f, nil)
		if n := len(p.cache.Status().SetAside); n != 1 {
			t.Fatalf("%d files were set aside", n)
		}
		d := addDurable(t, p, "d")
		p.run()
		settle()
		if diff := cmp.Diff([]string{"update ns/a@1→4", "delete ns/c@5", "lost ns/b@2"}, d.take()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		expectStore(t, p.informer, f)
	})
}

// TestObjectsThatAreNewerThanTheQueue of a file that was damaged: a page of the space has gone back, and with it all but
// the objects. What the durable handler was not told is in no delta then, and the list finds no difference.
func TestObjectsThatAreNewerThanTheQueue(t *testing.T) {
	for _, newer := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			f := newSource(t, configMap("a"), configMap("b"))
			path := testsupport.Path(t)
			p := launch(t, path, f, nil)
			addDurable(t, p, "d")
			p.run()
			settle()
			p.stop()
			before := testsupport.Path(t)
			testsupport.CopyFile(t, path, before)
			f.put(configMap("a", "x"))
			if newer {
				p = launch(t, path, f, nil).run() // The handler is absent for a life.
				settle()
				p.stop()
				inFile(t, before, func(old *bolt.Tx) error {
					return old.ForEach(func(name []byte, space *bolt.Bucket) error {
						return space.ForEachBucket(func(bucket []byte) error {
							if string(bucket) != "objects" {
								replaceBucket(t, path, name, bucket, space.Bucket(bucket))
							}
							return nil
						})
					})
				})
			}
			damageFreelist(t, path)
			p = launch(t, path, f, nil)
			p.damaged = true
			d := addDurable(t, p, "d")
			p.run()
			settle()
			want := []string{"update ns/a@1→3"}
			if newer {
				want = []string{"add ns/a@3 initial", "add ns/b@2 initial"}
			}
			d.expectInAnyOrder(t, want...)
		})
	}
}

// replaceBucket gives a bucket of a file that is closed the content of another one.
func replaceBucket(t *testing.T, path string, space, bucket []byte, content *bolt.Bucket) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		if err := tx.Bucket(space).DeleteBucket(bucket); err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
			return err
		}
		b, err := tx.Bucket(space).CreateBucket(bucket)
		if err != nil {
			return err
		}
		return content.ForEach(b.Put)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// damageFreelist has a file that cannot be written to any more.
func damageFreelist(t *testing.T, path string) {
	t.Helper()
	b := testsupport.ReadUsed(t, path)
	for id := range 2 { // Of both meta pages: the freelist is the number at 32.
		freelist := binary.NativeEndian.Uint64(b[id*persist.PageBytes+16+32:])
		b[freelist*persist.PageBytes+8] = 0x77
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestADeletionIsToldAlthoughABitHidesTheBuckets: nothing but the header of a page says how many
// spaces, and how many buckets, there are.
func TestADeletionIsToldAlthoughABitHidesTheBuckets(t *testing.T) {
	const count, flags = 10, 16 // In a page of bbolt: of elements, and of the first of them.
	for name, c := range map[string]struct {
		ofSpaces bool
		at       uint64
		bits     byte // 0: all that are set.
	}{
		"no spaces":         {true, count, 0},
		"a space's flag":    {true, flags, 1},
		"no buckets":        {false, count, 0},
		"a bucket's flag":   {false, flags, 1},
		"the other buckets": {false, flags + 16, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f, path := newSource(t, configMap("a"), configMap("b")), testsupport.Path(t)
				p := launch(t, path, f, nil)
				addDurable(t, p, "d")
				p.run()
				settle()
				p.stop()

				page := uint64(0)
				inFile(t, path, func(tx *bolt.Tx) error {
					page = uint64(tx.Cursor().Bucket().Root())
					return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
						if root := uint64(space.Root()); root != 0 && !c.ofSpaces {
							page = root
						}
						return nil
					})
				})
				changeInPlace(t, path, func(b []byte) {
					if at := page*persist.PageBytes + c.at; c.bits == 0 {
						b[at] = 0
					} else {
						b[at] ^= c.bits
					}
				})
				f.remove("b")
				p = launch(t, path, f, nil)
				d := addDurable(t, p, "d")
				p.run()
				settle()
				d.expect(t, "lost ns/b@2")
				expectStore(t, p.informer, f)
			})
		})
	}
}
