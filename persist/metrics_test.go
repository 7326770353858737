package persist

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// freeInFile is how much of a file bbolt does not use.
func freeInFile(t *testing.T, db *DB) (free int64) {
	t.Helper()
	info, err := os.Stat(db.path)
	if err != nil {
		t.Fatal(err)
	}
	free = info.Size()
	if err := db.bolt.View(func(tx *bolt.Tx) error {
		for id := 0; ; id++ {
			page, err := tx.Page(id)
			if page == nil || err != nil {
				return err
			}
			if page.Type != "free" {
				free -= PageBytes
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	return free
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), Options{CommitInterval: time.Second})
		expect := func(what string, want Metrics) {
			t.Helper()
			synctest.Wait()
			got := db.Metrics()
			info, err := os.Stat(db.path)
			if err != nil || got.Bytes != info.Size() || got.FreeBytes != freeInFile(t, db) {
				t.Errorf("%s: %d bytes, %d free, expected %d, %d, %v", what, got.Bytes, got.FreeBytes, info.Size(), freeInFile(t, db), err)
			}
			got.Bytes, got.FreeBytes, got.WrittenBytes = 0, 0, 0
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", what, diff)
			}
		}
		expect("after Open", Metrics{})
		begin := time.Now()
		apply(t, db, func(b *Batch) {
			for i := range 100 {
				b.Put(testBucket, fmt.Sprint(i), make([]byte, PageBytes))
			}
		})
		waiting := func() int64 {
			db.mu.Lock()
			defer db.mu.Unlock()
			return db.pending.bytes
		}
		pending := waiting()
		after(time.Second / 2)
		put(t, db, "late", "r")
		pendingBytes := waiting()
		if pending < 100*PageBytes {
			t.Errorf("%d bytes are pending", pending)
		}
		expect("before the commit", Metrics{PendingBytes: pendingBytes, Unwritten: time.Unix(0, begin.UnixNano())})
		after(time.Second / 2)
		durations := func(i int, n int64) (m Metrics) {
			m.Commits, m.CommitDurations[i] = n, n
			return m
		}
		expect("after the commit", durations(0, 1))
		if n := db.Metrics().WrittenBytes; n < 100*PageBytes || n > 300*PageBytes {
			t.Errorf("%d bytes written", n)
		}
		s := snapshot(t, db, false)
		defer s.Close()
		apply(t, db, func(b *Batch) { b.Drop(testBucket) })
		opened := time.Now().Add(time.Second)
		after(time.Second)
		put(t, db, "later", "x")
		after(time.Second)
		want := durations(0, 3)
		want.OldestSnapshot = opened
		expect("with a snapshot open", want)
		if free := db.Metrics().FreeBytes; free < 100*PageBytes {
			t.Errorf("%d bytes are free after a drop", free)
		}
		s.Close()
		put(t, db, "later", "y")
		after(time.Second)
		expect("after it", durations(0, 4))

		heal := testsupport.FailCommits(t)
		begin = time.Now()
		put(t, db, "later", "z")
		after(time.Second)
		got := db.Metrics()
		if got.FailedCommits != 1 || got.Commits != 4 || !got.Unwritten.Equal(begin) || got.PendingBytes == 0 {
			t.Errorf("a commit has failed: %+v, expected unwritten since %v", got, begin)
		}
		heal()
		testsupport.BeforeCommit(t, func() { time.Sleep(3 * time.Millisecond) })
		flush(t, db)
		if got := db.Metrics(); got.CommitDurations[2] != 1 || got.CommitTime != 3*time.Millisecond || got.Commits != 5 || got.PendingBytes != 0 || !got.Unwritten.IsZero() {
			t.Errorf("a commit of 3 ms: %+v", got)
		}
		testsupport.BeforeCommit(t, func() { time.Sleep(time.Hour) })
		put(t, db, "later", "1")
		flush(t, db)
		if got := db.Metrics(); got.CommitDurations[len(got.CommitDurations)-1] != 1 {
			t.Errorf("a commit of an hour: %+v", got)
		}
	})
}

// TestMetricsTakeNoLock, nor do the others that a scrape calls.
func TestMetricsTakeNoLock(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	db.mu.Lock()
	defer db.mu.Unlock()
	_ = db.Metrics()
	if _, _, err := db.Problem(); err != nil || db.MemoryOnly() {
		t.Error(err, db.MemoryOnly())
	}
}

func TestMetricsCountDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		branches := manyLeaves(t, path, "other")
		db := openDamaged(t, path)
		put(t, db, "new", "value")
		flush(t, db)
		at := dataAt(t, db, "new")
		overwrite(t, path, at, []byte{'V'})
		for range 2 {
			if _, _, err := lookup(db, testBucket, "new"); !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
		}
		if m := db.Metrics(); m.DamagedValues != 2 || m.Damages != 0 {
			t.Errorf("a damaged value was read twice: %+v", m)
		}
		circle(t, path, branches[0])
		if _, _, err := lookup(db, Bucket{testBucket.Space, "other"}, "0000"); !errors.Is(err, ErrCorrupt) {
			t.Error(err)
		}
		put(t, db, "newer", "value")
		if m := db.Metrics(); m.Damages != 1 || m.PendingBytes != 0 || !m.Unwritten.IsZero() {
			t.Errorf("a bucket is damaged: %+v", m)
		}
		_ = db.Close()
		openSound(t, path, manual)
	})
	path := testsupport.Path(t)
	writeFile(t, path, repeat("no cache file", 1000))
	if m := openSound(t, path, manual).Metrics(); m.Damages != 1 {
		t.Errorf("a file was set aside: %+v", m)
	}
	m := open(t, blockedPath(t), manual)
	put(t, m, "key", "value")
	if got := m.Metrics(); got != (Metrics{}) {
		t.Errorf("in memory: %+v", got)
	}
}

// dataAt is where a value is in the file.
func dataAt(t *testing.T, db *DB, key string) (at int64) {
	t.Helper()
	if err := db.bolt.View(func(tx *bolt.Tx) error {
		v := getFrom(fileBucket(tx, testBucket), key)
		at = offsetIn(db, v)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return at
}

// TestOnEvent: when commits begin to fail, not for each attempt, and when the file is written to again.
func TestOnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		db := openSound(t, testsupport.Path(t), Options{CommitInterval: time.Second, OnEvent: func(code Code, err error) {
			events = append(events, fmt.Sprint(code, " ", err))
		}})
		for range 2 {
			heal := testsupport.FailCommits(t)
			put(t, db, "key", "value")
			after(time.Minute)
			heal()
			after(time.Minute)
		}
		failed, written := "NotWritten no space left on device", " <nil>"
		if diff := cmp.Diff([]string{failed, written, failed, written}, events); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// offsetIn is where bytes of the mapping are in the file.
func offsetIn(db *DB, b []byte) int64 {
	return int64(uintptr(unsafe.Pointer(unsafe.SliceData(b))) - db.bolt.Info().Data)
}
