package indexer

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// TestWritesThatCannotRead leave an Indexer that either has all objects, and no index entry too many, or reports
// damage, once the file can be read. Until then List has all there are, and nobody counts fewer than none.
func TestWritesThatCannotRead(t *testing.T) {
	pod := func(name, rv string) *corev1.Pod { return withValues(newPod(name, rv), "v"+rv) }
	for name, test := range map[string]struct {
		lost  bool                 // The file has lost an object before.
		write func(*Indexer) error // While it cannot be read,
		later func(*Indexer) error // and when it can.
		want  []string             // What is listed.
		told  bool                 // Of damage.
	}{
		"new":                 {write: func(ix *Indexer) error { return ix.Add(pod("c", "2")) }, want: []string{"a", "b", "c"}},
		"stored":              {write: func(ix *Indexer) error { return ix.Add(pod("a", "2")) }, want: []string{"a", "b"}, told: true},
		"deleted":             {write: func(ix *Indexer) error { return ix.Delete(pod("a", "2")) }, want: []string{"b"}, told: true},
		"deleted, not stored": {write: func(ix *Indexer) error { return ix.Delete(pod("c", "2")) }, want: []string{"a", "b"}},
		"as many in memory as were counted": {
			write: func(ix *Indexer) error {
				return errors.Join(ix.Add(pod("c", "2")), ix.Add(pod("d", "2")), ix.Add(pod("d", "3")))
			},
			want: []string{"a", "b", "c", "d"},
		},
		"comes and goes": {
			write: func(ix *Indexer) error {
				return errors.Join(ix.Add(pod("c", "2")), ix.Delete(pod("c", "2")), ix.Add(pod("d", "2")), ix.Delete(pod("d", "2")))
			},
			want: []string{"a", "b"},
		},
		"an entry that is there already, and goes": {
			write: func(ix *Indexer) error { return ix.Add(pod("a", "2")) },
			later: func(ix *Indexer) error { return errors.Join(ix.Add(pod("a", "1")), ix.Delete(pod("a", "1"))) },
			want:  []string{"b"}, told: true,
		},
		"the file has lost an object": {lost: true, write: func(ix *Indexer) error { return ix.Add(pod("c", "2")) }, want: []string{"a", "c"}, told: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path, told := testsupport.Path(t), atomic.Int32{}
				open := func() (*Indexer, func() error) {
					db := testdb.Open(t, path, testdb.Manual)
					ix, err := New(Options{
						DB: db, Space: testSpace, Indexers: cache.Indexers{"values": byValues}, Logger: &testsupport.Quiet,
						NewObject: func() any { return new(corev1.Pod) }, OnCorrupt: func(error) { told.Add(1) },
					})
					if err != nil {
						t.Fatal(err)
					}
					return ix, db.Close
				}
				ix, closeDB := open()
				if err := errors.Join(ix.Add(pod("a", "1")), ix.Add(pod("b", "1")), closeDB()); err != nil {
					t.Fatal(err)
				}
				if test.lost {
					loseObject(t, path, "b")
				}
				ix, _ = open()
				restore := testsupport.FailReads(t, path)
				err := test.write(ix)
				time.Sleep(5 * recheckDelay / 2) // It is tried again until it can be read.
				restore()
				if test.later != nil {
					err = errors.Join(err, test.later(ix))
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := names(ix.List()); !slices.Equal(got, test.want) || len(ix.ListKeys()) != len(test.want) || ix.Len() < 0 {
					t.Errorf("listed %q, expected %q; keys %q, counted %d", got, test.want, ix.ListKeys(), ix.Len())
				}
				told.Store(0) // List has reported what is missing, too.
				time.Sleep(2 * recheckDelay)
				synctest.Wait()
				if told.Load() > 0 != test.told {
					t.Errorf("damage was reported %d times, expected any: %v", told.Load(), test.told)
				}
				if !test.told {
					checkRebuild(t, ix)
				}
				if err := ix.RebuildIndices(); err != nil { // As the relist does that was asked for.
					t.Fatal(err)
				}
				told.Store(0)
				checkRebuild(t, ix)
				if !ix.Complete() || told.Load() > 0 || ix.unread > 0 || ix.Len() != len(test.want) {
					t.Errorf("after the relist: complete %v, damage reported %d times, %d unread, %d objects", ix.Complete(), told.Load(), ix.unread, ix.Len())
				}
			})
		})
	}
}

// loseObject removes an object from a file that is closed, as a damaged page would.
func loseObject(t *testing.T, path, name string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err == nil {
		err = errors.Join(db.Update(func(tx *bolt.Tx) error {
			return tx.Bucket([]byte(testSpace)).Bucket([]byte(objectsBucket)).Delete([]byte("kns/" + name))
		}), db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestAnEntryThatIsLeftOverAndPutAsNew stays away once the indices are made anew, whatever becomes of it before the
// next commit (I1): nothing of a new key that is deleted is written otherwise.
func TestAnEntryThatIsLeftOverAndPutAsNew(t *testing.T) {
	pod := func(rv, v string) *corev1.Pod { return withValues(newPod("d", rv), v) }
	for name, write := range map[string]func(*Indexer) error{
		"changed and changed back": func(ix *Indexer) error { return errors.Join(ix.Add(pod("2", "v3")), ix.Add(pod("3", "v0"))) },
		"deleted and made anew":    func(ix *Indexer) error { return errors.Join(ix.Delete(pod("2", "v0")), ix.Add(pod("3", "v0"))) },
	} {
		t.Run(name, func(t *testing.T) {
			u := &unreadTest{T: t, path: testsupport.Path(t)}
			u.open()
			if err := errors.Join(u.ix.Add(pod("1", "v0")), u.db.Close()); err != nil {
				t.Fatal(err)
			}
			u.open()
			restore := testsupport.FailReads(t, u.path)
			err := write(u.ix)
			restore()
			if err := errors.Join(err, u.ix.RebuildIndices(), u.ix.Add(pod("5", "v2"))); err != nil {
				t.Fatal(err)
			}
			checkRebuild(t, u.ix)
		})
	}
}

// TestIndicesThatCouldNotBeMadeAnew are still known to be wrong, by the next process, too.
func TestIndicesThatCouldNotBeMadeAnew(t *testing.T) {
	u := &unreadTest{T: t, path: testsupport.Path(t)}
	u.open()
	if err := errors.Join(u.ix.Add(withValues(newPod("a", "1"), "v1")), u.db.Close()); err != nil {
		t.Fatal(err)
	}
	u.open()
	inTheMiddle := func() {}
	err := u.ix.AddIndexers(cache.Indexers{"none": func(any) ([]string, error) {
		inTheMiddle()
		return nil, nil
	}})
	u.readable(false)
	err = errors.Join(err, u.ix.Add(withValues(newPod("a", "2"), "v2"))) // The entry of v1 is left over.
	u.readable(true)
	if err != nil {
		t.Fatal(err)
	}
	inTheMiddle = func() { u.readable(false) }
	err = u.ix.RebuildIndices()
	u.readable(true)
	if err == nil {
		t.Fatal("the indices could be made anew")
	}
	if err := u.db.Close(); err != nil {
		t.Fatal(err)
	}
	u.open()
	if u.ix.Complete() {
		t.Error("the next process takes the index for right")
	}
	u.relist()
	checkRebuild(t, u.ix)
}

// TestRandomWritesThatCannotRead: whatever is written while reads fail, and across restarts, either the indices and the
// count are right, or damage is reported.
func TestRandomWritesThatCannotRead(t *testing.T) {
	for seed := range uint64(testsupport.Rounds(600, 60)) {
		synctest.Test(t, func(t *testing.T) {
			u := &unreadTest{T: t, path: testsupport.Path(t), rnd: rand.New(rand.NewPCG(seed, 0))}
			u.open()
			for range 40 {
				u.step()
				if u.rnd.IntN(4) == 0 {
					time.Sleep(time.Duration(u.rnd.IntN(1500)) * time.Millisecond)
				}
			}
			u.readable(true)
			time.Sleep(3 * recheckDelay)
			synctest.Wait()
			if u.told.Load() == 0 {
				checkRebuild(t, u.ix)
			}
			u.relist()
			time.Sleep(3 * recheckDelay)
			if !u.ix.Complete() || u.told.Load() > 0 {
				t.Errorf("after the relist: damage was reported %d times", u.told.Load())
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// unreadTest is an Indexer whose file may be unreadable.
type unreadTest struct {
	*testing.T
	path    string
	rnd     *rand.Rand
	db      *persist.DB
	ix      *Indexer
	told    atomic.Int32 // How often damage was reported.
	restore func()       // Nil: the file can be read.
	rv      int
}

func (u *unreadTest) open() {
	u.Helper()
	u.db = testdb.Open(u, u.path, testdb.Manual)
	var err error
	u.ix, err = New(Options{
		DB: u.db, Space: testSpace, Indexers: cache.Indexers{"values": byValues}, Logger: &testsupport.Quiet,
		NewObject: func() any { return new(corev1.Pod) }, OnCorrupt: func(error) { u.told.Add(1) },
	})
	if err != nil {
		u.Fatal(err)
	}
}

func (u *unreadTest) readable(yes bool) {
	if yes && u.restore != nil {
		u.restore()
		u.restore = nil
	} else if !yes && u.restore == nil {
		u.restore = testsupport.FailReads(u, u.path)
	}
}

// relist does what one that damage has asked for does last.
func (u *unreadTest) relist() {
	if err := u.ix.RebuildIndices(); err != nil {
		u.Fatal(err)
	}
	u.told.Store(0)
}

func (u *unreadTest) pod() *corev1.Pod {
	u.rv++
	return withValues(newPod(string('a'+rune(u.rnd.IntN(4))), strconv.Itoa(u.rv)), "v"+strconv.Itoa(u.rnd.IntN(4)))
}

func (u *unreadTest) step() {
	var err error
	switch n := u.rnd.IntN(13); {
	case n < 5:
		err = u.ix.Add(u.pod())
	case n < 7:
		err = u.ix.Delete(u.pod())
	case n < 9:
		err = u.batch()
	case n == 9:
		u.readable(u.restore != nil)
	case n == 10:
		u.ix.List()
	case u.restore != nil:
	case n == 11 && u.rnd.IntN(2) == 0:
		err = u.db.Flush()
	case n == 11:
		err = u.db.Close()
		u.open()
		if !u.ix.Complete() {
			u.relist()
		}
	case u.told.Load() > 0:
		u.relist()
	}
	if err != nil {
		u.Fatal(err)
	}
}

// batch writes several objects, some twice, and may not commit them.
func (u *unreadTest) batch() (err error) {
	w := u.ix.Writer()
	defer w.Close()
	for range 1 + u.rnd.IntN(4) {
		pod, wantOld := u.pod(), u.rnd.IntN(2) == 0
		if u.rnd.IntN(3) == 0 {
			w.Delete("ns/"+pod.Name, wantOld)
		} else {
			w.Set("ns/"+pod.Name, pod, wantOld)
		}
	}
	if u.rnd.IntN(4) > 0 {
		_, err = w.Commit(nil)
	}
	return err
}
