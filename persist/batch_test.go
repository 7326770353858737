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

	"github.com/warmwatch/warmwatch/internal/testsupport"
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
			b.Put(bucket, strconv.Itoa(k), []byte(strconv.Itoa(i)))
		}
		if i%2 == 0 {
			b.Put(bucket, "new", []byte("x"))
		} else {
			b.Delete(bucket, "new")
		}
	}
}

// TestABatchIsVisibleAsAWhole is A1 for readers: they take snapshots, of what
// was applied and of what is durable, while batches come and are committed.
func TestABatchIsVisibleAsAWhole(t *testing.T) {
	for _, o := range []Options{
		{CommitInterval: time.Millisecond},
		{CommitInterval: time.Millisecond, MaxPendingBytes: 2},
		{CommitInterval: time.Hour, MaxPendingBytes: 40 << 10},
	} {
		t.Run(fmt.Sprintf("%v/%d", o.CommitInterval, o.MaxPendingBytes), func(t *testing.T) {
			db := openSound(t, testsupport.Path(t), o)
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
				db.WaitForRoom()
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
	db := openSound(t, testsupport.Path(t), manual)
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
				b.Put(testBucket, key, []byte(strconv.Itoa(i)))
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

// TestSnapshotsWhileCommitsCome: after Snapshot has captured the memory and before it begins
// its transaction, batches may be committed. Then it is taken again.
func TestSnapshotsWhileCommitsCome(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	put(t, db, "key", "0")
	flush(t, db)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for last := 0; ; {
				select {
				case <-done:
					return
				default:
				}
				s, err := db.Snapshot(testBucket.Space)
				if err != nil {
					t.Error(err)
					return
				}
				v, _, err := viewText(s, testBucket.Name, "key")
				s.Close()
				n, _ := strconv.Atoi(v)
				if err != nil || n < last {
					t.Errorf("%q after %d, %v", v, last, err)
					return
				}
				last = n
			}
		})
	}
	for i := range testsupport.Rounds(200, 40) {
		put(t, db, "key", strconv.Itoa(i))
		flush(t, db)
	}
	close(done)
	wg.Wait()
}

// TestScanMergesMemoryAndFileInOrder has keys in all three places at once:
// pending, in a commit that is under way, and in the file.
func TestScanMergesMemoryAndFileInOrder(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	for i := range 40 { // File: all keys.
		put(t, db, fmt.Sprintf("k%02d", i), "file")
	}
	flush(t, db)
	hold := testsupport.HoldCommit(t)
	apply(t, db, func(b *Batch) { // Under way: every third replaced, every fifth removed.
		for i := 0; i < 40; i += 3 {
			b.Put(testBucket, fmt.Sprintf("k%02d", i), []byte("flushing"))
		}
		for i := 0; i < 40; i += 5 {
			b.Delete(testBucket, fmt.Sprintf("k%02d", i))
		}
		b.Put(testBucket, "k05a", []byte("flushing"))
	})
	flushed := make(chan error, 1)
	go func() { flushed <- db.Flush() }()
	<-hold.Started
	apply(t, db, func(b *Batch) { // Pending: every fourth replaced, every seventh removed.
		for i := 0; i < 40; i += 4 {
			b.Put(testBucket, fmt.Sprintf("k%02d", i), []byte("pending"))
		}
		for i := 0; i < 40; i += 7 {
			b.Delete(testBucket, fmt.Sprintf("k%02d", i))
		}
		b.Put(testBucket, "k99", []byte("pending"))
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
	close(hold.Release)
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
}

func TestScanStopsWhenToldAndGoesOnBehindTheLastKey(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
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
