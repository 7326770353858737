package persist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// damageInPlace are ways in which the file of a running DB is damaged.
var damageInPlace = map[string]func(f *os.File, size int64, rnd *rand.Rand) error{
	"truncated to nothing": func(f *os.File, _ int64, _ *rand.Rand) error { return f.Truncate(0) },
	"truncated to a page":  func(f *os.File, _ int64, _ *rand.Rand) error { return f.Truncate(PageBytes) },
	"truncated to 4 pages": func(f *os.File, _ int64, _ *rand.Rand) error { return f.Truncate(4 * PageBytes) },
	"truncated to half":    func(f *os.File, size int64, _ *rand.Rand) error { return f.Truncate(size / 2) },
	"truncated by a byte":  func(f *os.File, size int64, _ *rand.Rand) error { return f.Truncate(size - 1) },
	"overwritten by noise": func(f *os.File, size int64, rnd *rand.Rand) error {
		b := make([]byte, size)
		_, _ = rnd.Read(b)
		_, err := f.WriteAt(b, 0)
		return err
	},
	"overwritten by zeros": func(f *os.File, size int64, _ *rand.Rand) error {
		_, err := f.WriteAt(make([]byte, size), 0)
		return err
	},
	"without meta pages": func(f *os.File, _ int64, _ *rand.Rand) error {
		_, err := f.WriteAt(make([]byte, 2*PageBytes), 0)
		return err
	},
	"with noise behind the meta pages": func(f *os.File, size int64, rnd *rand.Rand) error {
		b := make([]byte, size-2*PageBytes)
		_, _ = rnd.Read(b)
		_, err := f.WriteAt(b, 2*PageBytes)
		return err
	},
	"with noise in the second half": func(f *os.File, size int64, rnd *rand.Rand) error {
		b := make([]byte, size/2)
		_, _ = rnd.Read(b)
		_, err := f.WriteAt(b, size-size/2)
		return err
	},
}

func damage(t *testing.T, path, how string, rnd *rand.Rand) {
	t.Helper()
	size := int64(len(testsupport.ReadUsed(t, path)))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(damageInPlace[how](f, size, rnd), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestReadersWaitForAReplacementWhileTheDiskAnswers, if they cannot return an error: a large file on a slow disk. When
// the disk answers no more, they do not wait either. An error of a read is an answer.
func TestReadersWaitForAReplacementWhileTheDiskAnswers(t *testing.T) {
	for _, ends := range []bool{true, false} {
		t.Run(fmt.Sprintf("it goes on answering: %v", ends), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkSlowReplacement(t, ends) })
		})
	}
}

func checkSlowReplacement(t *testing.T, ends bool) {
	t.Helper()
	db := open(t, testsupport.Path(t), manual)
	apply(t, db, func(b *Batch) {
		for i := range 1000 {
			b.Put(testBucket, fmt.Sprintf("%04d", i), Bytes(repeat("x", 500)))
		}
	})
	flush(t, db)
	put(t, db, "in memory", "y")
	const slow = 300 * time.Millisecond
	begin, before, release := time.Now(), readFile, make(chan struct{})
	replacing, hanging := atomic.Bool{}, atomic.Bool{}
	defer func() { readFile = before }()
	readFile = func(f io.ReaderAt, b []byte, at int64) (int, error) {
		if _, copied := f.(notingFile); copied {
			replacing.Store(true)
			time.Sleep(slow)
			if !ends && time.Since(begin) > 2*hangingCommit {
				hanging.Store(true)
				<-release
			}
		}
		return before(f, b, at)
	}
	_ = db.readError(db.bolt, corruptFile("test"))
	if v, _, err := lookup(db, testBucket, "in memory"); v != "y" || err != nil || time.Since(begin) > 0 {
		t.Errorf("what is in memory: %q, %v, after %v", v, err, time.Since(begin))
	}
	others := make(chan error, 1) // They may hold a lock.
	go func() {
		_, _, err := lookup(db, testBucket, "0001")
		if err == nil {
			err = db.Read(testBucket.Space, func(*Snapshot) error { return nil })
		}
		if time.Since(begin) > hangingCommit+time.Second {
			err = fmt.Errorf("after %v: %w", time.Since(begin), err)
		}
		others <- err
	}()
	n := 0
	err := db.ReadPatiently(testBucket.Space, func(s *Snapshot) error {
		n = 0
		return s.Scan(testBucket.Name, "", func(*Item) (bool, error) { n++; return true, nil })
	})
	took := time.Since(begin)
	if err := <-others; !errors.Is(err, ErrCorrupt) || took > 0 && strings.HasPrefix(err.Error(), "after") {
		t.Errorf("others got %v", err)
	}
	switch {
	case !replacing.Load():
		t.Error("no file was replaced")
	case ends && (n != 1001 || err != nil || took < 2*hangingCommit):
		t.Errorf("%d of 1001 keys, %v, after %v", n, err, took)
	case !ends && (err == nil || !hanging.Load() || took > 4*hangingCommit):
		t.Errorf("no answer any more: %d keys, %v, after %v", n, err, took)
	}
	close(release)
	after(time.Hour)
	flush(t, db)
	if got := len(contents(t, db)); got != 1001 {
		t.Errorf("%d of 1001 keys afterwards", got)
	}
}

// TestAFileThatIsDamagedWhileOpenIsReplaced: readers get errors or values that
// were written; then there is a new file, and all works again.
func TestAFileThatIsDamagedWhileOpenIsReplaced(t *testing.T) {
	rnd := testsupport.Rand(t)
	for how := range damageInPlace {
		t.Run(how, func(t *testing.T) {
			path := testsupport.Path(t)
			db := open(t, path, manual)
			resets := make(chan error, 10)
			db.AddHook(&Hook{AfterReset: func(cause error) { resets <- cause }})
			want := map[string]string{}
			for i := range 500 {
				key, v := fmt.Sprintf("%03d", i), repeat(strconv.Itoa(i), 50)
				put(t, db, key, v)
				want[key] = v
			}
			flush(t, db)
			put(t, db, "pending", "survives")
			put(t, db, "250", "survives")
			early := snapshot(t, db, false) // Some have a transaction open already.
			damage(t, path, how, rnd)
			var wg sync.WaitGroup
			for r := range 4 {
				wg.Go(func() {
					for i := range 500 {
						key := fmt.Sprintf("%03d", (i+r*100)%500)
						v, found, err := lookup(db, testBucket, key)
						switch {
						case errors.Is(err, ErrCorrupt):
						case err != nil:
							t.Errorf("key %s: %v", key, err)
						case found && v != want[key] && v != "survives":
							t.Errorf("key %s is %q", key, v)
						}
					}
				})
			}
			got, err := scan(early, testBucket.Name, "")
			if err != nil && !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
			for key, v := range got {
				if v != want[key] && v != "survives" {
					t.Errorf("key %s is %q in a snapshot", key, v)
				}
			}
			early.Close()
			wg.Wait()

			// A commit that fails because of the damage has the file replaced.
			for range 3 {
				if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
					t.Fatal(err)
				}
				put(t, db, "later", "works")
			}
			flush(t, db)
			if err := db.Err(); err != nil {
				t.Errorf("still degraded: %v", err)
			}
			select {
			case cause := <-resets:
				if !errors.Is(cause, ErrCorrupt) {
					t.Errorf("AfterReset was told %v", cause)
				}
				if names := setAside(t, path); len(names) != 1 {
					t.Errorf("set aside: %v", names)
				}
			default:
				if len(setAside(t, path)) != 0 || how != "truncated by a byte" {
					t.Errorf("AfterReset was not called")
				}
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}

			db = openSound(t, path, manual)
			got = contents(t, db)
			for key, v := range map[string]string{"pending": "survives", "250": "survives", "later": "works"} {
				if got[key] != v {
					t.Errorf("key %s is %q after a restart", key, got[key])
				}
				delete(got, key)
			}
			for key, v := range got {
				if v != want[key] {
					t.Errorf("key %s is %q after a restart", key, v)
				}
			}
		})
	}
}

// TestAFileThatGoesBackIsReplaced: without its newest meta page bbolt goes on
// with the one before, and nothing else tells that a commit is missing.
func TestAFileThatGoesBackIsReplaced(t *testing.T) {
	for name, meet := range map[string]func(*testing.T, *DB) error{
		"found by View":     func(_ *testing.T, db *DB) error { return second(lookupOf(db, "old")) },
		"found by Snapshot": func(_ *testing.T, db *DB) error { return second(db.Snapshot(testBucket.Space)) },
		"found by DurableSnapshot": func(_ *testing.T, db *DB) error {
			return second(db.DurableSnapshot(testBucket.Space))
		},
		"found by a commit": func(t *testing.T, db *DB) error {
			put(t, db, "sooner", "value")
			return db.Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			db := open(t, path, manual)
			var cause error
			db.AddHook(&Hook{AfterReset: func(err error) { cause = err }})
			put(t, db, "old", "value")
			flush(t, db)
			put(t, db, "lost", "value")
			flush(t, db)
			zeroNewestMeta(t, path)
			err := meet(t, db)
			if err != nil && !errors.Is(err, ErrCorrupt) {
				t.Errorf("the error is %v", err)
			}
			put(t, db, "later", "value")
			flush(t, db)
			if len(setAside(t, path)) != 1 || !errors.Is(cause, ErrCorrupt) {
				t.Errorf("the file was not replaced: %v", cause)
			}
			if v, _ := get(t, db, "old"); v != "value" {
				t.Error("what could be read was not salvaged")
			}
		})
	}
}

// TestADeletedKeyStaysDeletedAfterTheFileHasGoneBack: a key that is put anew does not exist, so that
// nothing need be written if it is deleted before the next commit. But below it the file may have the
// key again, because the commit that has deleted it fails or is lost.
func TestADeletedKeyStaysDeletedAfterTheFileHasGoneBack(t *testing.T) {
	putNew := func(t *testing.T, db *DB) {
		apply(t, db, func(b *Batch) { b.PutNew(testBucket, "key", Bytes("new")) })
	}
	lose := func(t *testing.T, db *DB) {
		flush(t, db)
		putNew(t, db)
		zeroNewestMeta(t, db.Path())
		if _, _, err := lookup(db, testBucket, "other"); err != nil {
			t.Fatal(err)
		}
	}
	for name, back := range map[string]func(*testing.T, *DB){
		"its deletion could not be committed": func(t *testing.T, db *DB) {
			full, b := fullDisk(t), db.bolt
			b.checkMeta = func() error {
				b.checkMeta = b.metaIsValid // Once.
				return corruptFile("damaged")
			}
			if err := db.Flush(); err == nil {
				t.Fatal("there was no damage")
			}
			putNew(t, db)
			full.Store(false)
			after(2 * minReplaceDelay)
		},
		"its deletion was lost": lose,
		"its deletion was lost, and the file cannot be replaced": func(t *testing.T, db *DB) {
			fullDisk(t)
			lose(t, db)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := open(t, testsupport.Path(t), manual)
				put(t, db, "key", "old")
				put(t, db, "other", "value")
				flush(t, db)
				apply(t, db, func(b *Batch) { b.Delete(testBucket, "key") })
				back(t, db)
				if v, found := get(t, db, "key"); !found || v != "new" {
					t.Fatalf("the key is %q", v)
				}
				apply(t, db, func(b *Batch) { b.Delete(testBucket, "key") })
				if v, found := get(t, db, "key"); found {
					t.Errorf("the key was deleted, and is %q", v)
				}
			})
		})
	}
}

// TestTheNewFileHasTheMarksOfWhatCannotBeEncoded, too: the next process must not
// take such a value for absent.
func TestTheNewFileHasTheMarksOfWhatCannotBeEncoded(t *testing.T) {
	path := testsupport.Path(t)
	db := open(t, path, manual)
	apply(t, db, func(b *Batch) { b.Put(testBucket, "bad", &blob{text: "bad", err: errors.New("no encoding")}) })
	flush(t, db)
	zeroNewestMeta(t, path)
	put(t, db, "later", "value")
	if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	put(t, db, "later still", "value")
	flush(t, db)
	if len(setAside(t, path)) != 1 {
		t.Error("the file was not replaced")
	}
	if v, _ := get(t, db, "bad"); v != "bad" {
		t.Errorf("in this process it is %q", v)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := lookup(openSound(t, path, manual), testBucket, "bad"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("the next process finds %v", err)
	}
}

// TestAFreelistThatLiesHasTheFileReplaced: bbolt would free as many pages as the
// freelist's header says, one by one.
func TestAFreelistThatLiesHasTheFileReplaced(t *testing.T) {
	path := testsupport.Path(t)
	db := open(t, path, manual)
	put(t, db, "old", "value")
	flush(t, db)
	b := testsupport.ReadUsed(t, path)
	im := &image{pageSize: PageBytes}
	id := binary.NativeEndian.Uint64(im.newestMeta(b)[metaFreelistAt:])
	overwrite(t, path, int64(id)*int64(im.pageSize)+pageOverflowAt, []byte{0xff, 0xff, 0xff, 0xff})
	put(t, db, "new", "value")
	if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	flush(t, db)
	if len(setAside(t, path)) != 1 {
		t.Error("the file was not replaced")
	}
	for _, key := range []string{"old", "new"} {
		if v, _ := get(t, db, key); v != "value" {
			t.Errorf("%s is %q", key, v)
		}
	}
}

func lookupOf(db *DB, key string) (string, error) {
	v, _, err := lookup(db, testBucket, key)
	return v, err
}

func zeroNewestMeta(t *testing.T, path string) {
	t.Helper()
	b := testsupport.ReadUsed(t, path)
	clear((&image{pageSize: PageBytes}).newestMeta(b))
	overwrite(t, path, 0, b)
}

// TestWhatCanBeReadOfADamagedFileIsSalvaged: noise in one bucket costs nothing
// of the others.
func TestWhatCanBeReadOfADamagedFileIsSalvaged(t *testing.T) {
	path := testsupport.Path(t)
	db := open(t, path, manual)
	want := map[string]string{}
	for i := range 2500 { // More than one transaction of the salvage.
		key := fmt.Sprintf("%04d", i)
		apply(t, db, func(b *Batch) { b.Put(Bucket{"space", "a"}, key, Bytes(repeat(key, 10))) })
		want[key] = repeat(key, 10)
	}
	flush(t, db)
	put(t, db, "only", "page") // Alone in its leaf.
	flush(t, db)
	put(t, db, "pending", "survives")
	// All pages of the test bucket: its values are found nowhere else.
	b := testsupport.ReadUsed(t, path)
	for at := 0; at+4 < len(b); at++ {
		if string(b[at:at+4]) == "only" {
			copy(b[at:], "lost")
		}
	}
	overwrite(t, path, 0, b)
	var corrupt *CorruptError
	if _, _, err := lookup(db, testBucket, "lost"); !errors.As(err, &corrupt) || corrupt.Bucket != testBucket {
		t.Errorf("the damaged value reads as %v", err)
	}
	if len(setAside(t, path)) != 0 {
		t.Error("one bad value had the file replaced")
	}
	// Now something worse, in a place that is read next.
	db.mu.Lock()
	db.resetCause = &CorruptError{Err: errors.New("test")}
	db.mu.Unlock()
	db.Kick()
	put(t, db, "later", "works")
	flush(t, db)
	if len(setAside(t, path)) != 1 {
		t.Error("the file was not replaced")
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openSound(t, path, manual)
	s := snapshot(t, db, false)
	got, err := scan(s, "a", "")
	s.Close()
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%.1000s", err, diff)
	}
	if diff := cmp.Diff(map[string]string{"pending": "survives", "later": "works"}, contents(t, db)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestAKeyOutOfOrderHasTheFileReplaced: bbolt could never remove it again.
func TestAKeyOutOfOrderHasTheFileReplaced(t *testing.T) {
	path := testsupport.Path(t)
	db := open(t, path, manual)
	for _, key := range []string{"aaaa", "bbbb", "cccc", "dddd"} {
		put(t, db, key, "v")
	}
	flush(t, db)
	b := testsupport.ReadUsed(t, path)
	for at := 0; at+4 < len(b); at++ {
		if string(b[at:at+4]) == "bbbb" {
			copy(b[at:], "zzzz")
		}
	}
	overwrite(t, path, 0, b)
	s := snapshot(t, db, false)
	err := s.Scan(testBucket.Name, "", func(*Item) (bool, error) { return true, nil })
	s.Close()
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("the scan returned %v", err)
	}
	put(t, db, "eeee", "v")
	flush(t, db)
	if diff := cmp.Diff(map[string]string{"aaaa": "v", "cccc": "v", "dddd": "v", "eeee": "v"}, contents(t, db)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestADamagedFileThatIsGoneIsReplacedAllTheSame: there is nothing to set aside.
func TestADamagedFileThatIsGoneIsReplacedAllTheSame(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	put(t, db, "a", "1")
	flush(t, db)
	put(t, db, "b", "2")
	damage(t, path, "truncated to nothing", rand.New(rand.NewSource(1)))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := lookup(db, testBucket, "a"); err != nil && !errors.Is(err, ErrCorrupt) {
		t.Errorf("the lost value reads as %v", err)
	}
	flush(t, db)
	if diff := cmp.Diff(map[string]string{"b": "2"}, contents(t, db)); diff != "" || len(setAside(t, path)) != 0 {
		t.Errorf("set aside: %v, -want +got:\n%s", setAside(t, path), diff)
	}
}

// TestADamagedFileIsReplacedByClose: what was applied is in the new one (P4).
func TestADamagedFileIsReplacedByClose(t *testing.T) {
	rnd := testsupport.Rand(t)
	for how := range damageInPlace {
		t.Run(how, func(t *testing.T) {
			path := testsupport.Path(t)
			db := open(t, path, manual)
			for i := range 300 {
				put(t, db, strconv.Itoa(i), repeat("x", 100))
			}
			flush(t, db)
			for i := range 300 {
				put(t, db, strconv.Itoa(i), "new")
			}
			damage(t, path, how, rnd)
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			got := contents(t, openSound(t, path, manual))
			for i := range 300 {
				if v := got[strconv.Itoa(i)]; v != "new" {
					t.Fatalf("key %d is %q", i, v)
				}
			}
		})
	}
}
