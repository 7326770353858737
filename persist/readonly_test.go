package persist

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// directory is what a directory has, with the contents of its files.
func directory(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(b)
	}
	return files
}

func openReadOnly(t *testing.T, path string) *DB {
	t.Helper()
	db, err := OpenReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestToReadAFileChangesNothing(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	want := map[string]string{}
	for i := range 1000 {
		want[strconv.Itoa(i)] = repeat("v", i)
		put(t, db, strconv.Itoa(i), want[strconv.Itoa(i)])
	}
	apply(t, db, func(b *Batch) {
		for _, name := range []Bucket{{"z", "a"}, {"a", "z"}, {"a", "b"}} {
			b.Put(name, "key", nil)
		}
	})
	close1(t, db)
	before := directory(t, filepath.Dir(path))
	db = openReadOnly(t, path)
	for _, durable := range []bool{false, true} {
		s := snapshot(t, db, durable)
		got, err := scan(s, testBucket.Name, "")
		s.Close()
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v, -want +got:\n%.1000s", err, diff)
		}
	}
	if v, found := get(t, db, "7"); !found || v != want["7"] {
		t.Errorf("View finds %v, %q", found, v)
	}
	buckets, err := db.Buckets()
	if diff := cmp.Diff([]Bucket{{"a", "b"}, {"a", "z"}, testBucket, {"z", "a"}}, buckets); diff != "" || err != nil {
		t.Errorf("Buckets: %v, -want +got:\n%s", err, diff)
	}
	if m := db.Metrics(); m.Bytes != int64(len(before["cache.db"])) || m.FreeBytes == 0 {
		t.Errorf("%+v", m)
	}
	if err := db.Update(func(b *Batch) { b.Put(testBucket, "7", nil) }); !errors.Is(err, ErrClosed) {
		t.Errorf("Update: %v", err)
	}
	if err := db.UpdateWithRoom(func(b *Batch) { b.Put(testBucket, "7", nil) }); !errors.Is(err, ErrClosed) {
		t.Errorf("UpdateWithRoom: %v", err)
	}
	if err := db.Flush(); err != nil {
		t.Error(err)
	}
	o := manual
	o.LockTimeout = -1
	if other := open(t, path, o); !errors.Is(other.Err(), ErrLocked) {
		t.Errorf("Open beside a reader: %v", other.Err())
	} else {
		close1(t, other)
	}
	openReadOnly(t, path) // Beside another.
	for range 2 {
		close1(t, db)
	}
	if _, _, err := lookup(db, testBucket, "7"); !errors.Is(err, ErrClosed) {
		t.Errorf("View after Close: %v", err)
	}
	if diff := cmp.Diff(before, directory(t, filepath.Dir(path))); diff != "" {
		t.Errorf("the directory has changed: %.1000s", diff)
	}
}

// TestDamageThatAReaderMeetsIsLeftAsItIs: the next Open finds it itself.
func TestDamageThatAReaderMeetsIsLeftAsItIs(t *testing.T) {
	path := testsupport.Path(t)
	branches := manyLeaves(t, path)
	db := openReadOnly(t, path)
	circle(t, path, branches[0])
	before := directory(t, filepath.Dir(path))
	if _, _, err := lookup(db, testBucket, "0000"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("View: %v", err)
	}
	if code, _, _ := db.Problem(); code != CodeFileDamaged {
		t.Errorf("Problem: %s", code)
	}
	close1(t, db)
	if _, err := OpenReadOnly(path); !errors.Is(err, ErrCorrupt) {
		t.Errorf("OpenReadOnly: %v", err)
	}
	if diff := cmp.Diff(before, directory(t, filepath.Dir(path))); diff != "" {
		t.Errorf("the directory has changed: %.1000s", diff)
	}
	openSound(t, path, manual)
}

func TestOpenReadOnlyRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, path string)
		want error
	}{
		"nothing":         {func(*testing.T, string) {}, fs.ErrNotExist},
		"an empty file":   {func(t *testing.T, path string) { writeFile(t, path, "") }, ErrCorrupt},
		"a short file":    {func(t *testing.T, path string) { writeFile(t, path, "no cache file") }, ErrCorrupt},
		"a foreign file":  {func(t *testing.T, path string) { writeFile(t, path, repeat("no cache file", 1e5)) }, ErrCorrupt},
		"a cut file":      {func(t *testing.T, path string) { manyLeaves(t, path); _ = os.Truncate(path, 3*PageBytes) }, ErrCorrupt},
		"a damaged file":  {func(t *testing.T, path string) { circle(t, path, manyLeaves(t, path)[0]) }, ErrCorrupt},
		"another version": {func(t *testing.T, path string) { changeFile(t, path, laterFormat) }, ErrUnknownFormat},
	} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			c.make(t, path)
			before := directory(t, filepath.Dir(path))
			if _, err := OpenReadOnly(path); !errors.Is(err, c.want) {
				t.Errorf("%v, expected %v", err, c.want)
			}
			if diff := cmp.Diff(before, directory(t, filepath.Dir(path))); diff != "" {
				t.Errorf("the directory has changed: %.1000s", diff)
			}
			openSound(t, path, manual)
		})
	}
	for _, path := range []string{"", t.TempDir(), os.DevNull} {
		if _, err := OpenReadOnly(path); err == nil {
			t.Errorf("%q was opened", path)
		}
	}
}

func TestOpenReadOnlyNamesTheHolder(t *testing.T) {
	path := testsupport.Path(t)
	pid, release := holdFile(t, path)
	defer release()
	begin := time.Now()
	_, err := OpenReadOnly(path)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), path) || time.Since(begin) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	if holder(path) != "" && !strings.HasSuffix(err.Error(), fmt.Sprintf("process %d", pid)) {
		t.Errorf("%v, expected process %d", err, pid)
	}
}

func TestACopyIsOfOneCommit(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	var stop atomic.Bool
	var pause sync.Mutex
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; !stop.Load(); n++ {
			pause.Lock()
			pause.Unlock() //nolint:staticcheck // SA2001: it waits.
			apply(t, db, func(b *Batch) {
				for i := range 500 {
					b.Put(testBucket, fmt.Sprint(i), []byte(strconv.Itoa(n)+repeat(" ", 100*(n%30))))
				}
			})
			if err := db.Flush(); err != nil {
				t.Error(err)
			}
		}
	})
	copied := filepath.Join(t.TempDir(), "copy.db")
	whole, torn := 0, 0
	for n := 0; whole < 5 || torn < 5; n++ {
		if n%10 == 4 { // A copy may be slower than any commit.
			pause.Lock()
		}
		ok, err := copyFile(path, copied)
		if n%10 == 9 {
			pause.Unlock()
		}
		if err != nil {
			t.Error(err)
			break
		}
		if !ok {
			torn++
			continue
		}
		whole++
		reader := openReadOnly(t, copied)
		first, _ := get(t, reader, "0")
		for key, value := range contents(t, reader) {
			if value != first {
				t.Errorf("key %s is of another batch", key)
			}
		}
		close1(t, reader)
	}
	stop.Store(true)
	pause.TryLock()
	pause.Unlock()
	wg.Wait()
	if err := CopyFile(t.Context(), path, copied); err != nil {
		t.Error(err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx      context.Context
		from, to string
		want     error
	}{
		{t.Context(), path + "-", copied, fs.ErrNotExist},
		{t.Context(), path, filepath.Join(blockedPath(t), "to"), nil},
		{t.Context(), os.DevNull, copied, nil},
		{stopped, path, copied, context.Canceled},
	} {
		if err := CopyFile(c.ctx, c.from, c.to); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("from %s to %s: %v, expected %v", c.from, c.to, err, c.want)
		}
	}
}
