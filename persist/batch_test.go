package persist

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sameEverywhere reads keys that every batch sets to its own number, from
// several buckets, and returns the number.
func sameEverywhere(s *Snapshot) (int, error) {
	seen := map[string]int{}
	for _, name := range []string{"a", "b", "c"} {
		all, err := scan(s, name, "")
		if err != nil {
			return 0, err
		}
		for key, v := range all {
			if key == "new" { // Put by every even batch, removed by every odd one.
				continue
			}
			seen[v]++
		}
		_, found, err := viewText(s, name, "new")
		if err != nil {
			return 0, err
		}
		if n, ok := all["0"]; ok {
			if even := n[len(n)-1]%2 == 0; even != found {
				return 0, fmt.Errorf("bucket %s: batch %s has the key that comes and goes: %v", name, n, found)
			}
		}
	}
	if len(seen) > 1 {
		return 0, fmt.Errorf("parts of several batches: %v", seen)
	}
	for v, times := range seen {
		if times != 30 {
			return 0, fmt.Errorf("batch %s has %d keys, expected 30", v, times)
		}
		return strconv.Atoi(v)
	}
	return 0, nil
}

func viewText(s *Snapshot, name, key string) (value string, found bool, err error) {
	found, err = s.View(name, key, func(it *Item) error {
		value, err = text(it)
		return err
	})
	return value, found, err
}

func putEverywhere(b *Batch, i int) {
	for _, name := range []string{"a", "b", "c"} {
		bucket := Bucket{testBucket.Space, name}
		if i%50 == 0 {
			b.Drop(bucket)
		}
		for k := range 10 {
			b.Put(bucket, strconv.Itoa(k), Bytes(strconv.Itoa(i)))
		}
		if i%2 == 0 {
			b.Put(bucket, "new", Bytes("x"))
		} else {
			b.Delete(bucket, "new")
		}
	}
}

// TestABatchIsVisibleAsAWhole is P1 for readers: they take snapshots, of what
// was applied and of what is durable, while batches come and are committed.
func TestABatchIsVisibleAsAWhole(t *testing.T) {
	for _, o := range []Options{
		{CommitInterval: time.Millisecond},
		{CommitInterval: time.Millisecond, CommitBytes: 1},
		{CommitInterval: time.Hour, CommitBytes: 20 << 10, MaxPendingBytes: 20 << 10},
	} {
		t.Run(fmt.Sprintf("%v/%d", o.CommitInterval, o.CommitBytes), func(t *testing.T) {
			db := openSound(t, tempPath(t), o)
			const batches = 600
			var wg sync.WaitGroup
			done := make(chan struct{})
			for _, durable := range []bool{false, false, true} {
				wg.Go(func() {
					last := 0
					for running := true; running; {
						select {
						case <-done:
							running = false
						default:
						}
						before := int(db.Durable())
						s := snapshot(t, db, durable)
						n, err := sameEverywhere(s)
						s.Close()
						switch {
						case err != nil:
							t.Error(err)
							running = false
						case n < last:
							t.Errorf("batch %d after batch %d", n, last)
						case durable && n < before:
							t.Errorf("batch %d in the file, expected at least %d", n, before)
						}
						last = n
					}
				})
			}
			wg.Go(func() { // Reads of single keys do not go back either.
				last := 0
				for {
					select {
					case <-done:
						return
					default:
					}
					v, found, err := lookup(db, Bucket{testBucket.Space, "b"}, "3")
					if err != nil {
						t.Error(err)
					}
					if n, _ := strconv.Atoi(v); found && n < last {
						t.Errorf("batch %d after batch %d", n, last)
					} else if found {
						last = n
					}
				}
			})
			for i := 1; i <= batches; i++ {
				if n := apply(t, db, func(b *Batch) { putEverywhere(b, i) }); int(n) != i {
					t.Errorf("batch has number %d, expected %d", n, i)
				}
				if i%100 == 0 {
					flush(t, db)
				}
			}
			close(done)
			wg.Wait()
		})
	}
}

// TestASnapshotStaysAsItIs holds snapshots over commits.
func TestASnapshotStaysAsItIs(t *testing.T) {
	db := openSound(t, tempPath(t), manual)
	type held struct {
		s    *Snapshot
		want map[string]string
	}
	var all []held
	state := map[string]string{}
	hold := func() { all = append(all, held{snapshot(t, db, false), maps.Clone(state)}) }
	for i := range 20 {
		hold()
		apply(t, db, func(b *Batch) {
			for k := range 5 {
				key := strconv.Itoa((i + k) % 12)
				b.Put(testBucket, key, Bytes(strconv.Itoa(i)))
				state[key] = strconv.Itoa(i)
			}
			gone := strconv.Itoa(i % 7)
			b.Delete(testBucket, gone)
			delete(state, gone)
			if i == 13 {
				b.Drop(testBucket)
				clear(state)
			}
		})
		hold()
		if i%3 == 0 {
			flush(t, db)
		}
	}
	for i, h := range all {
		got, err := scan(h.s, testBucket.Name, "")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(h.want, got); diff != "" {
			t.Errorf("snapshot %d: -want +got:\n%s", i, diff)
		}
		for k := range 12 {
			key := strconv.Itoa(k)
			v, found, err := viewText(h.s, testBucket.Name, key)
			if want, exists := h.want[key]; err != nil || found != exists || v != want {
				t.Errorf("snapshot %d, key %s: %q, %v, %v, expected %q, %v", i, key, v, found, err, want, exists)
			}
		}
		h.s.Close()
		h.s.Close() // Is idempotent.
	}
}

// TestScanMergesMemoryAndFileInOrder has keys in all three places at once:
// pending, in a commit that is under way, and in the file.
func TestScanMergesMemoryAndFileInOrder(t *testing.T) {
	db := openSound(t, tempPath(t), manual)
	for i := range 40 { // File: all keys.
		put(t, db, fmt.Sprintf("k%02d", i), "file")
	}
	flush(t, db)
	hold := &blob{text: "held", started: make(chan struct{}), release: make(chan struct{})}
	apply(t, db, func(b *Batch) { // Under way: every third replaced, every fifth removed.
		for i := 0; i < 40; i += 3 {
			b.Put(testBucket, fmt.Sprintf("k%02d", i), Bytes("flushing"))
		}
		for i := 0; i < 40; i += 5 {
			b.Delete(testBucket, fmt.Sprintf("k%02d", i))
		}
		b.Put(testBucket, "k05a", Bytes("flushing"))
		b.Put(Bucket{testBucket.Space, "other"}, "x", hold)
	})
	flushed := make(chan error, 1)
	go func() { flushed <- db.Flush() }()
	<-hold.started
	apply(t, db, func(b *Batch) { // Pending: every fourth replaced, every seventh removed.
		for i := 0; i < 40; i += 4 {
			b.Put(testBucket, fmt.Sprintf("k%02d", i), Bytes("pending"))
		}
		for i := 0; i < 40; i += 7 {
			b.Delete(testBucket, fmt.Sprintf("k%02d", i))
		}
		b.Put(testBucket, "k99", Bytes("pending"))
		b.Delete(testBucket, "k98")
	})
	want := map[string]string{"k05a": "flushing", "k99": "pending"}
	for i := range 40 {
		switch key := fmt.Sprintf("k%02d", i); {
		case i%7 == 0:
		case i%4 == 0:
			want[key] = "pending"
		case i%5 == 0:
		case i%3 == 0:
			want[key] = "flushing"
		default:
			want[key] = "file"
		}
	}
	s := snapshot(t, db, false)
	defer s.Close()
	for _, from := range []string{"", "k", "k05", "k05\x00", "k05a", "k28", "k98", "k99", "k99\x00", "z"} {
		wantFrom := maps.Clone(want)
		maps.DeleteFunc(wantFrom, func(k, _ string) bool { return k < from })
		got, err := scan(s, testBucket.Name, from)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wantFrom, got); diff != "" {
			t.Errorf("from %q: -want +got:\n%s", from, diff)
		}
	}
	for key := range want {
		if v, _ := get(t, db, key); v != want[key] {
			t.Errorf("key %s is %q, expected %q", key, v, want[key])
		}
	}
	close(hold.release)
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
}

func TestScanStopsWhenToldAndGoesOnBehindTheLastKey(t *testing.T) {
	db := openSound(t, tempPath(t), manual)
	for i := range 10 {
		put(t, db, strconv.Itoa(i), "v")
		if i == 5 {
			flush(t, db)
		}
	}
	s := snapshot(t, db, false)
	defer s.Close()
	var got []string
	for from, more := "", true; more; {
		more = false
		n := 0
		err := s.Scan(testBucket.Name, from, func(it *Item) (bool, error) {
			if n == 3 {
				more = true
				return false, nil
			}
			n++
			got, from = append(got, it.Key), it.Key+"\x00"
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	stop := errors.New("stop")
	if err := s.Scan(testBucket.Name, "", func(*Item) (bool, error) { return true, stop }); !errors.Is(err, stop) {
		t.Errorf("Scan returned %v, expected the callback's error", err)
	}
	if err := db.Err(); err != nil {
		t.Errorf("an error of the callback degraded the DB: %v", err)
	}
}

// TestANewKeyThatIsDeletedBeforeTheCommitIsNeverWritten looks into the layers:
// not even a tombstone is left.
func TestANewKeyThatIsDeletedBeforeTheCommitIsNeverWritten(t *testing.T) {
	db := openSound(t, tempPath(t), manual)
	encoded := 0
	apply(t, db, func(b *Batch) {
		b.PutNew(testBucket, "short-lived", &blob{text: "x", encoded: &encoded})
		b.PutNew(testBucket, "stays", Bytes("x"))
	})
	apply(t, db, func(b *Batch) { b.Delete(testBucket, "short-lived") })
	db.mu.RLock()
	if _, found := db.pending.lookup(testBucket, "short-lived"); found {
		t.Error("a tombstone is pending")
	}
	db.mu.RUnlock()
	flush(t, db)
	if encoded != 0 {
		t.Errorf("the value was encoded %d times", encoded)
	}
	// Once it is in the file, a tombstone is needed.
	apply(t, db, func(b *Batch) { b.Delete(testBucket, "stays") })
	if got := contents(t, db); len(got) != 0 {
		t.Errorf("still there: %v", got)
	}
	flush(t, db)
	if got := contents(t, db); len(got) != 0 {
		t.Errorf("still there after the commit: %v", got)
	}
}

// TestANewKeyIsDeletedWhileItIsBeingCommitted is the case between the two.
func TestANewKeyIsDeletedWhileItIsBeingCommitted(t *testing.T) {
	path := tempPath(t)
	db := openSound(t, path, manual)
	v := &blob{text: "x", started: make(chan struct{}), release: make(chan struct{})}
	apply(t, db, func(b *Batch) { b.PutNew(testBucket, "key", v) })
	flushed := make(chan error, 1)
	go func() { flushed <- db.Flush() }()
	<-v.started
	apply(t, db, func(b *Batch) { b.Delete(testBucket, "key") })
	if got := contents(t, db); len(got) != 0 {
		t.Errorf("still there: %v", got)
	}
	close(v.release)
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
			path := tempPath(t)
			db := openSound(t, path, manual)
			other := Bucket{testBucket.Space, "other"}
			for i := range 300 {
				apply(t, db, func(b *Batch) {
					b.Put(testBucket, strconv.Itoa(i), Bytes(repeat("x", 200)))
					b.Put(other, strconv.Itoa(i), Bytes("y"))
				})
			}
			if flushBetween {
				flush(t, db)
			}
			apply(t, db, func(b *Batch) {
				b.Put(testBucket, "before", Bytes("1"))
				b.Drop(testBucket)
				b.Put(testBucket, "7", Bytes("2"))
				b.Put(testBucket, "after", Bytes("3"))
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
	path := tempPath(t)
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
	db := openSound(t, tempPath(t), manual)
	for _, space := range []string{"space", "spac", "space2"} {
		apply(t, db, func(b *Batch) { b.Put(Bucket{space, "bucket"}, "key", Bytes(space)) })
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

// TestWhatWasTakenFromACallbackOutlivesTheTransaction is P3: the pages are
// used again, and the map is gone.
func TestWhatWasTakenFromACallbackOutlivesTheTransaction(t *testing.T) {
	db := openSound(t, tempPath(t), manual)
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
