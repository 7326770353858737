package persist

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestANewKeyThatIsDeletedBeforeTheCommitIsNeverWritten looks into the layers:
// not even a tombstone is left.
func TestANewKeyThatIsDeletedBeforeTheCommitIsNeverWritten(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	apply(t, db, func(b *Batch) {
		b.PutNew(testBucket, "short-lived", []byte("x"))
		b.PutNew(testBucket, "stays", []byte("x"))
	})
	apply(t, db, func(b *Batch) { b.Delete(testBucket, "short-lived") })
	db.mu.RLock()
	if _, found := db.pending.lookup(testBucket, "short-lived"); found {
		t.Error("a tombstone is pending")
	}
	db.mu.RUnlock()
	flush(t, db)
	// Once the key is in the file, a tombstone is needed.
	apply(t, db, func(b *Batch) { b.Delete(testBucket, "stays") })
	if got := contents(t, db); len(got) != 0 {
		t.Errorf("still there: %v", got)
	}
	flush(t, db)
	if got := contents(t, db); len(got) != 0 {
		t.Errorf("still there after the commit: %v", got)
	}
}

// TestANewKeyDoesNotBringBackADeletedOne, which is still in the file. And a new key that is set again
// is still new.
func TestANewKeyDoesNotBringBackADeletedOne(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	put(t, db, "key", "old")
	flush(t, db)
	apply(t, db, func(b *Batch) { b.Delete(testBucket, "key") })
	apply(t, db, func(b *Batch) {
		b.PutNew(testBucket, "key", []byte("new"))
		b.PutNew(testBucket, "other", []byte("new"))
	})
	apply(t, db, func(b *Batch) { b.Put(testBucket, "other", []byte("newer")) })
	apply(t, db, func(b *Batch) {
		b.Delete(testBucket, "key")
		b.Delete(testBucket, "other")
	})
	db.mu.RLock()
	if _, found := db.pending.lookup(testBucket, "other"); found {
		t.Error("a tombstone is pending of what is not in the file")
	}
	db.mu.RUnlock()
	for range 2 {
		if got := contents(t, db); len(got) != 0 {
			t.Errorf("still there: %v", got)
		}
		flush(t, db)
	}
}

// TestANewKeyIsDeletedWhileItIsBeingCommitted is the case between pending and in the file.
func TestANewKeyIsDeletedWhileItIsBeingCommitted(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	held := testsupport.HoldCommit(t)
	apply(t, db, func(b *Batch) { b.PutNew(testBucket, "key", []byte("x")) })
	flushed := make(chan error, 1)
	go func() { flushed <- db.Flush() }()
	<-held.Started
	apply(t, db, func(b *Batch) { b.Delete(testBucket, "key") })
	if got := contents(t, db); len(got) != 0 {
		t.Errorf("still there: %v", got)
	}
	close(held.Release)
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
	if got := contents(t, db); len(got) != 0 {
		t.Errorf("still there after the commit: %v", got)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, openSound(t, path, manual)); len(got) != 0 {
		t.Errorf("still there after a restart: %v", got)
	}
}

func TestDropThenPutLeavesOnlyWhatWasPutAfterwards(t *testing.T) {
	for _, flushBetween := range []bool{false, true} {
		t.Run(fmt.Sprintf("flush between: %v", flushBetween), func(t *testing.T) {
			path := testsupport.Path(t)
			db := openSound(t, path, manual)
			other := Bucket{testBucket.Space, "other"}
			for i := range 300 {
				apply(t, db, func(b *Batch) {
					b.Put(testBucket, strconv.Itoa(i), []byte(repeat("x", 200)))
					b.Put(other, strconv.Itoa(i), []byte("y"))
				})
			}
			if flushBetween {
				flush(t, db)
			}
			apply(t, db, func(b *Batch) {
				b.Put(testBucket, "before", []byte("1"))
				b.Drop(testBucket)
				b.Put(testBucket, "7", []byte("2"))
				b.Put(testBucket, "after", []byte("3"))
				b.Delete(testBucket, "after")
				b.Delete(testBucket, "9")
			})
			want := map[string]string{"7": "2"}
			check := func(when string) {
				t.Helper()
				if diff := cmp.Diff(want, contents(t, db)); diff != "" {
					t.Errorf("%s: -want +got:\n%s", when, diff)
				}
				if _, found := get(t, db, "8"); found {
					t.Errorf("%s: a dropped key is found", when)
				}
				if v, _, _ := lookup(db, other, "8"); v != "y" {
					t.Errorf("%s: the other bucket has %q", when, v)
				}
			}
			check("pending")
			flush(t, db)
			check("committed")
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			db = openSound(t, path, manual)
			check("reopened")
		})
	}
}

// TestKeysMayBeEmptyAndOfAnyBytes: objects without a name have empty keys,
// which bbolt has not.
func TestKeysMayBeEmptyAndOfAnyBytes(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	want := map[string]string{"": "empty", "\x00": "zero", "\xff\xff": "ff", "k": "k", "ä/ö": "umlauts", repeat("long", 5000): "long", "empty value": ""}
	for key, v := range want {
		put(t, db, key, v)
	}
	check := func(when string) {
		t.Helper()
		if diff := cmp.Diff(want, contents(t, db)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", when, diff)
		}
		for key := range want {
			if v, found := get(t, db, key); !found || v != want[key] {
				t.Errorf("%s: key %.20q is %q, %v", when, key, v, found)
			}
		}
	}
	check("pending")
	flush(t, db)
	check("committed")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openSound(t, path, manual)
	check("reopened")
	for key := range want {
		apply(t, db, func(b *Batch) { b.Delete(testBucket, key) })
	}
	flush(t, db)
	if got := contents(t, db); len(got) != 0 {
		t.Errorf("left after deletion: %v", got)
	}
}

// TestSpacesAreCapturedApart: a snapshot sees its own space and no other.
func TestSpacesAreCapturedApart(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	for _, space := range []string{"space", "spac", "space2"} {
		apply(t, db, func(b *Batch) { b.Put(Bucket{space, "bucket"}, "key", []byte(space)) })
	}
	for range 2 {
		for _, space := range []string{"space", "spac", "space2", "none"} {
			s, err := db.Snapshot(space)
			if err != nil {
				t.Fatal(err)
			}
			v, found, err := viewText(s, "bucket", "key")
			if want := space != "none"; err != nil || found != want || (found && v != space) {
				t.Errorf("space %s: %q, %v, %v", space, v, found, err)
			}
			s.Close()
		}
		flush(t, db)
	}
}

// TestWhatWasTakenFromACallbackOutlivesTheTransaction: the pages are
// used again, and bbolt's mapping is gone.
func TestWhatWasTakenFromACallbackOutlivesTheTransaction(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	for i := range 100 {
		put(t, db, fmt.Sprintf("%03d", i), repeat("a", 1000))
	}
	flush(t, db)
	got := contents(t, db)
	for range 3 {
		for i := range 100 {
			put(t, db, fmt.Sprintf("%03d", i), repeat("b", 1000))
		}
		flush(t, db)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for key, v := range got {
		if len(key) != 3 || v != repeat("a", 1000) {
			t.Fatalf("key %q changed under its reader", key)
		}
	}
}
