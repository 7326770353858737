package indexer

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
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
				if !ix.Complete() || told.Load() > 0 || ix.unread || ix.Len() != len(test.want) {
					t.Errorf("after the relist: complete %v, damage reported %d times, unread %v, %d objects", ix.Complete(), told.Load(), ix.unread, ix.Len())
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
