package persist

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// full has the tests of damage and of kills do all they can, where they otherwise take a sample, another one each time.
var full = flag.Bool("persist.full", false, "every damaged file and 3,000 flipped bits, not samples")

// rounds is how many of all a test does: some, or less under -short.
func rounds(all, some, short int) int {
	if *full {
		return all
	}
	return testsupport.Rounds(min(all, some), short)
}

var update = flag.Bool("update", false, "write testdata/format-v1.db anew, for a new format version")

// programs run in processes of their own: to hold a file, to be killed, or
// because a bug would end them.
var programs = testsupport.Programs{}

func TestMain(m *testing.M) {
	testsupport.Main(m, programs)
}

// manual are the options of a DB that commits only when told to.
var manual = Options{CommitInterval: time.Hour, DurableDelay: time.Hour}

// open opens a DB. When the test is done it is closed and its file checked.
func open(t testing.TB, path string, o Options) *DB {
	t.Helper()
	if o.Logger == nil {
		o.Logger = &testsupport.Quiet
	}
	db, err := Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("close: %v", err)
		}
		if !db.MemoryOnly() {
			checkFile(t, path)
		}
	})
	return db
}

// openSound is open for a test in which nothing is wrong with the file.
func openSound(t testing.TB, path string, o Options) *DB {
	t.Helper()
	db := open(t, path, o)
	t.Cleanup(func() {
		if err := db.Err(); err != nil {
			t.Errorf("degraded: %v", err)
		}
	})
	if db.MemoryOnly() {
		t.Fatalf("no file: %v", db.Err())
	}
	return db
}

// checkFile checks the structure of a closed file, and that every value in it
// can be read.
func checkFile(t testing.TB, path string) {
	t.Helper()
	b, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true, Timeout: time.Second})
	if err != nil {
		t.Errorf("check %s: %v", path, err)
		return
	}
	defer b.Close()
	err = b.View(func(tx *bolt.Tx) error {
		var errs []error
		for err := range tx.Check() {
			errs = append(errs, err)
		}
		return errors.Join(append(errs, checkValues(tx))...)
	})
	if err != nil {
		t.Errorf("check %s: %v", path, err)
	}
}

func checkValues(tx *bolt.Tx) error {
	return tx.ForEach(func(space []byte, b *bolt.Bucket) error {
		if string(space) == formatBucket {
			return nil
		}
		return b.ForEachBucket(func(name []byte) error {
			bucket := Bucket{string(space), string(name)}
			return b.Bucket(name).ForEach(func(k, v []byte) error {
				if len(k) == 0 || k[0] != keyPrefix {
					return fmt.Errorf("key %q in %v", k, bucket)
				}
				_, err := unseal(bucket, string(k[1:]), v)
				return err
			})
		})
	})
}

// update applies one batch.
func apply(t testing.TB, db *DB, fn func(*Batch)) uint64 {
	t.Helper()
	if err := db.Update(fn); err != nil {
		t.Fatal(err)
	}
	return db.Applied()
}

func flush(t testing.TB, db *DB) {
	t.Helper()
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
}

var testBucket = Bucket{"space", "bucket"}

func put(t testing.TB, db *DB, key, value string) {
	t.Helper()
	apply(t, db, func(b *Batch) { b.Put(testBucket, key, []byte(value)) })
}

// text is the value of an item, in memory or in the file.
func text(it *Item) (string, error) {
	p, err := it.Payload()
	return string(p), err
}

func lookup(db *DB, bucket Bucket, key string) (value string, found bool, err error) {
	found, err = db.View(bucket, key, func(it *Item) error {
		value, err = text(it)
		return err
	})
	return value, found, err
}

func get(t testing.TB, db *DB, key string) (value string, found bool) {
	t.Helper()
	value, found, err := lookup(db, testBucket, key)
	if err != nil {
		t.Fatal(err)
	}
	return value, found
}

// scan returns what a snapshot has in a bucket from a key on, and checks the
// order.
func scan(s *Snapshot, name, from string) (map[string]string, error) {
	got := map[string]string{}
	last, first := "", true
	err := s.Scan(name, from, func(it *Item) (bool, error) {
		if it.Key < from || (!first && it.Key <= last) {
			return false, fmt.Errorf("scan from %q: key %q after %q", from, it.Key, last)
		}
		last, first = it.Key, false
		v, err := text(it)
		got[it.Key] = v
		return true, err
	})
	return got, err
}

func snapshot(t testing.TB, db *DB, durable bool) *Snapshot {
	t.Helper()
	take := db.Snapshot
	if durable {
		take = db.DurableSnapshot
	}
	s, err := take(testBucket.Space)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// contents is all that the test bucket has.
func contents(t testing.TB, db *DB) map[string]string {
	t.Helper()
	s := snapshot(t, db, false)
	defer s.Close()
	got, err := scan(s, testBucket.Name, "")
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// setAside lists the files that were set aside.
func setAside(t testing.TB, path string) []string {
	t.Helper()
	names, err := filepath.Glob(path + ".corrupt-*")
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// overwrite writes to a file that exists, at an offset. The file may be in use.
func overwrite(t testing.TB, path string, at int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(b, at)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func repeat(s string, n int) string { return strings.Repeat(s, n) }

// blockedPath is a path at which no file can be made: its directory is a file.
func blockedPath(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(file, "cache.db")
}

func expectContents(t *testing.T, db *DB, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, contents(t, db)); diff != "" {
		t.Errorf("-want +got:\n%.1000s", diff)
	}
}

// Err is the error of Problem.
func (db *DB) Err() error {
	_, _, err := db.Problem()
	return err
}

// Applied returns the number of the last batch.
func (db *DB) Applied() uint64 {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.applied
}
