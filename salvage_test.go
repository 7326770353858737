package warmwatch_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// TestADurableHandlerOutlivesAFileThatIsFoundDamagedAtAStart: its cursor and
// its deltas are salvaged. So it is told of objects that were deleted while nothing
// watched (Q2), and of those whose deltas it has not acknowledged.
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

		testsupport.DamageFreelist(t, crashed)
		f.remove("b")
		p = launch(t, crashed, f, nil)
		if n := len(p.cache.Status().SetAside); n != 1 {
			t.Fatalf("%d files were set aside", n)
		}
		d := addDurable(t, p, "d")
		p.run()
		settle()
		d.expectInAnyOrder(t, "delete ns/c@5", "add ns/a@4 initial", "lost ns/b@2")
		expectStore(t, p.informer, f)
	})
}

// TestDurableHandlersOfADamagedFileAreToldEverything: a page of the space may have gone back, and with it what says
// what they were told, and that they exist. What a handler was not told is in no delta then, and the list finds no
// difference.
func TestDurableHandlersOfADamagedFileAreToldEverything(t *testing.T) {
	for name, c := range map[string]damagedFile{
		"nothing has gone back":                   {},
		"all but the objects":                     {back: allButObjects},
		"all but the objects, for a late handler": {back: allButObjects, late: true},
		"the name":                    {back: allButObjects, isNew: true},
		"the name, of a late handler": {back: allButObjects, isNew: true, late: true},
		"what the queue has":          {back: []string{"queue"}},
		"the queue":                   {back: []string{"cursors", "deltas", "queue", "tombstones"}},
		"the objects":                 {back: []string{"objects"}},
	} {
		t.Run(name, func(t *testing.T) { bubble(t, c.testToldEverything) })
	}
}

type damagedFile struct {
	back       []string                              // The buckets that have gone back.
	isNew      bool                                  // So has the handler's name.
	late       bool                                  // The handler is added after the start.
	unreadable func(testing.TB, string) (end func()) // The file cannot be read for a while, nil if it can.
}

var allButObjects = []string{"checkpoint", "cursors", "deltas", "index", "queue", "store", "tombstones"}

func (c damagedFile) testToldEverything(t *testing.T) {
	f := newSource(t, configMap("a"), configMap("b"))
	names := []string{"other", "d"}
	if c.isNew {
		names = names[:1]
	}
	path, before := filledFor(t, f, names...), testsupport.Path(t)
	testsupport.CopyFile(t, path, before)
	p := launch(t, path, f, nil) // The handler is absent for a life, or has its first one.
	if c.isNew {
		addDurable(t, p, "d")
	}
	p.run()
	f.put(configMap("a", "x"))
	settle()
	p.stop()
	goBack(t, path, before, c.back)
	testsupport.DamageFreelist(t, path)
	f.remove("b")
	p = launch(t, path, f, nil)
	p.damaged = true
	var d *recorder
	if !c.late {
		d = addDurable(t, p, "d")
	}
	if c.unreadable != nil {
		time.AfterFunc(2*time.Minute, c.unreadable(t, path))
	}
	p.run()
	if c.unreadable != nil {
		advance(3 * time.Minute)
	}
	if c.late {
		advance(lateHandlers / 2)
		d = addDurable(t, p, "d")
	}
	settle()
	d.expectInAnyOrder(t, "add ns/a@3 initial", "lost ns/b@2")
}

// lateHandlers is how long handlers that are added count as late ones of an informer that has caught up.
const lateHandlers = time.Minute

// TestANameThatADamagedFileHasLost, and whose deltas it still has, is told of the deletions among them, until a
// minute after the informer has caught up. Later, or if it is forgotten, it is a new name.
func TestANameThatADamagedFileHasLost(t *testing.T) {
	const known, isNew = "add ns/a@3 initial, delete ns/b@4", "add ns/a@3 initial"
	add := func(t *testing.T, p *process) *recorder { return addDurable(t, p, "d") }
	addAfter := func(d time.Duration) func(*testing.T, *process) *recorder {
		return func(t *testing.T, p *process) *recorder {
			advance(d)
			return addDurable(t, p, "d")
		}
	}
	for name, c := range map[string]struct {
		other         bool                                 // Another handler, which hangs, holds the deltas.
		before, after func(*testing.T, *process) *recorder // The start.
		want          string
	}{
		"at once": {before: add, want: known},
		"long before the start": {before: func(t *testing.T, p *process) *recorder {
			defer settle()
			return addDurable(t, p, "d")
		}, want: known},
		"removed and added again": {before: func(t *testing.T, p *process) *recorder {
			addAndRemove(t, p, "d")
			return addDurable(t, p, "d")
		}, want: known},
		"late":     {other: true, after: addAfter(lateHandlers / 2), want: known},
		"too late": {other: true, after: addAfter(2 * lateHandlers), want: isNew},
		"forgotten": {other: true, after: func(t *testing.T, p *process) *recorder {
			advance(lateHandlers / 2)
			if err := p.informer.ForgetDurableEventHandler("d"); err != nil {
				t.Fatal(err)
			}
			return addDurable(t, p, "d")
		}, want: isNew},
	} {
		t.Run(name, func(t *testing.T) {
			for _, lives := range []int{0, 1} { // That end before the informer runs.
				bubble(t, func(t *testing.T) {
					f := newSource(t, configMap("a"), configMap("b"))
					path := withoutCursors(t, f)
					for range lives {
						p := launch(t, path, f, nil)
						p.damaged = true
						addDurable(t, p, "other")
						settle()
						p.stop()
					}
					p := launch(t, path, f, nil)
					p.damaged = true
					var d *recorder
					if c.other {
						hangs := make(chan struct{})
						defer close(hangs)
						addDurable(t, p, "hangs").during = func(string) { <-hangs }
					}
					if c.before != nil {
						d = c.before(t, p)
					}
					p.run()
					if c.after != nil {
						d = c.after(t, p)
					}
					settle()
					d.expectInAnyOrder(t, strings.Split(c.want, ", ")...)
				})
			}
		})
	}
}

// withoutCursors returns a file that has two deltas for a durable handler, nothing that says whose they are, and
// damage.
func withoutCursors(t *testing.T, f *source) (path string) {
	t.Helper()
	p := launch(t, testsupport.Path(t), f, nil)
	release := make(chan struct{})
	d := addDurable(t, p, "d")
	p.run()
	settle()
	d.during = func(string) { <-release }
	f.put(configMap("a", "x"))
	f.remove("b")
	settle()
	path = p.crash()
	close(release)
	p.stop()
	loseBuckets(t, path, "cursors", "queue")
	testsupport.DamageFreelist(t, path)
	return path
}

// TestADurableHandlerOfAFileThatHasLostItsObjectsMayKnowThem: no list is asked for that may be older than what it
// was told.
func TestADurableHandlerOfAFileThatHasLostItsObjectsMayKnowThem(t *testing.T) {
	objects := []string{"objects", "store", "checkpoint", "index"}
	all := append([]string{"cursors", "queue", "deltas", "tombstones"}, objects...)
	for name, c := range map[string]struct {
		lost          []string
		sound         bool // Nothing else is damaged.
		again         bool // The handler was added before, and removed.
		behindTheList bool // The handler is added then.
		withoutAList  int  // So many lives have ended while the server was away.
	}{
		"its cursor is there":               {lost: objects},
		"its name is lost":                  {lost: all},
		"its cursor is lost":                {lost: append([]string{"cursors"}, objects...), sound: true},
		"its name is lost, added again":     {lost: all, again: true},
		"its name is lost, later":           {lost: all, withoutAList: 2},
		"its name is lost, behind the list": {lost: all, behindTheList: true},
		"its cursor is lost, later":         {lost: append([]string{"cursors"}, objects...), sound: true, withoutAList: 2},
		"its cursor is there, later":        {lost: objects, withoutAList: 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				path := filledFor(t, f, "d")
				loseBuckets(t, path, c.lost...)
				if !c.sound {
					testsupport.DamageFreelist(t, path)
				}
				f.setDown(errUnreachable)
				var d *recorder
				var p *process
				for life := range c.withoutAList + 1 {
					if life > 0 {
						p.stop()
					}
					p = launch(t, path, f, nil)
					p.damaged = true
					if c.again {
						addAndRemove(t, p, "d")
					}
					if !c.behindTheList {
						d = addDurable(t, p, "d")
					}
					p.run()
					settle()
				}
				for _, h := range p.informer.Status().Handlers {
					if !h.InitialList {
						t.Errorf("it has still to be told of all objects: %+v", h)
					}
				}
				f.takeRequests()
				f.setDown(nil)
				settle()
				if requests := f.takeRequests(); strings.Contains(requests[0], "rv=") {
					t.Errorf("requests %q", requests)
				}
				if c.behindTheList {
					d = addDurable(t, p, "d")
					settle()
				}
				d.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial")
			})
		})
	}
}

// TestAHandlerThatWasToldOfNothingYetKnowsNothing: the first list may be as old as the server has it at hand, also
// where an earlier process has stored the name, and no list.
func TestAHandlerThatWasToldOfNothingYetKnowsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := testsupport.Path(t)
		f.setDown(errUnreachable)
		p := launch(t, path, f, nil)
		addDurable(t, p, "d")
		p.run()
		settle()
		p.stop()
		f.setDown(nil)
		f.takeRequests()
		p = launch(t, path, f, nil)
		d := addDurable(t, p, "d")
		p.run()
		settle()
		if requests := f.takeRequests(); !strings.HasPrefix(requests[0], "LIST rv=0") {
			t.Errorf("requests %q", requests)
		}
		d.expect(t, "add ns/a@1 initial")
	})
}

// TestAHandlerThatWasToldThatThereIsNothing is told of what a relist finds then.
func TestAHandlerThatWasToldThatThereIsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		path := filledFor(t, f, "d")
		f.put(configMap("a"))
		f.compact()
		p := launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "2" })
		d := addDurable(t, p, "d")
		p.run()
		settle()
		d.expect(t, "add ns/a@1")
		expectStore(t, p.informer, f)
	})
}

// filledFor returns a file whose durable handlers of these names were told of all objects.
func filledFor(t *testing.T, f *source, names ...string) (path string) {
	t.Helper()
	p := launch(t, testsupport.Path(t), f, nil)
	for _, name := range names {
		addDurable(t, p, name)
	}
	p.run()
	settle()
	p.stop()
	return p.path
}

func addAndRemove(t *testing.T, p *process, name string) {
	t.Helper()
	registration, err := p.informer.AddDurableEventHandler(name, &recorder{})
	if err != nil {
		t.Fatal(err)
	}
	remove(t, p, registration)
}

// goBack gives buckets of a file that is closed the content that they have in another one.
func goBack(t *testing.T, path, before string, buckets []string) {
	t.Helper()
	inFile(t, before, func(old *bolt.Tx) error {
		return old.ForEach(func(name []byte, space *bolt.Bucket) error {
			for _, bucket := range buckets {
				replaceBucket(t, path, name, []byte(bucket), space.Bucket([]byte(bucket)))
			}
			return nil
		})
	})
}

// loseBuckets removes buckets of the only space with objects in a file that is closed.
func loseBuckets(t *testing.T, path string, buckets ...string) {
	t.Helper()
	var space []byte
	inFile(t, path, func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			if b.Bucket([]byte("objects")) != nil {
				space = bytes.Clone(name)
			}
			return nil
		})
	})
	for _, bucket := range buckets {
		replaceBucket(t, path, space, []byte(bucket), nil)
	}
}

// replaceBucket gives a bucket of a file that is closed the content of another one, or removes it if that is nil.
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
		if content == nil {
			return nil
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
				f := newSource(t, configMap("a"), configMap("b"))
				path := filledFor(t, f, "d")

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
				p := launch(t, path, f, nil)
				d := addDurable(t, p, "d")
				p.run()
				settle()
				d.expectInAnyOrder(t, "add ns/a@1 initial", "lost ns/b@2")
				expectStore(t, p.informer, f)
			})
		})
	}
}
