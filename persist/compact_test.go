package persist

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/hook"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// compactSmall has Open compact files of 1 MiB.
func compactSmall(t *testing.T) {
	before := minCompactBytes
	minCompactBytes = 1 << 20
	t.Cleanup(func() { minCompactBytes = before })
}

var otherBucket = Bucket{"space", "other"}

// sparseFile makes a file in which most is free: 1 of 10 objects is left. It returns what the file has.
func sparseFile(t *testing.T, path string, objects, bytes int) (want map[string]string) {
	t.Helper()
	db := openSound(t, path, manual)
	want = map[string]string{}
	for i := range objects {
		key := fmt.Sprintf("%06d", i*7919%objects)
		value := fmt.Sprintf("%0*d", bytes, i)
		put(t, db, key, value)
		want[key] = value
		if i%1000 == 999 {
			flush(t, db)
		}
	}
	apply(t, db, func(b *Batch) {
		for key := range want {
			if !strings.HasSuffix(key, "7") {
				b.Delete(testBucket, key)
				delete(want, key)
			}
		}
		b.Put(otherBucket, "", nil)
		b.Put(Bucket{"empty", "bucket"}, "key", nil)
	})
	flush(t, db)
	apply(t, db, func(b *Batch) { b.Delete(Bucket{"empty", "bucket"}, "key") })
	close1(t, db)
	return want
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// expectFile opens a file, and checks all that sparseFile has left in it, and that nothing is beside it.
func expectFile(t *testing.T, path string, want map[string]string) {
	t.Helper()
	db := openSound(t, path, manual)
	expectContents(t, db, want)
	if v, found, err := lookup(db, otherBucket, ""); v != "" || !found || err != nil {
		t.Errorf("the other bucket has %q, %v, %v", v, found, err)
	}
	buckets, err := db.Buckets()
	if diff := cmp.Diff([]Bucket{{"empty", "bucket"}, testBucket, otherBucket}, buckets); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	close1(t, db)
	if files, _ := filepath.Glob(path + "?*"); len(files) > 0 {
		t.Errorf("beside the file: %v", files)
	}
}

// TestOpenMakesAFileSmallOfWhichMostIsFree: at most 1.3 times what is in it.
func TestOpenMakesAFileSmallOfWhichMostIsFree(t *testing.T) { // S1
	if runtime.GOOS == "windows" {
		t.Skip("a file that is open cannot be replaced")
	}
	path := testsupport.Path(t)
	want := sparseFile(t, path, 25_000, 1500)
	live := int64(0)
	for key, value := range want {
		live += int64(len(key) + len(value))
	}
	before := sizeOf(t, path)
	if before < minCompactBytes {
		t.Fatalf("the file has %d bytes", before)
	}
	old, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var log logged
	db := openSound(t, path, log.options(manual))
	useOld := func(string, int, os.FileMode) (*os.File, error) { return old, nil }
	if b, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: 1, OpenFile: useOld}); err != nil {
		t.Errorf("the old file is still locked: %v", err)
	} else if err := b.Close(); err != nil {
		t.Error(err)
	}
	if m := db.Metrics(); m.Bytes > live*13/10 || m.Bytes != sizeOf(t, path) {
		t.Errorf("%d bytes, Metrics says %d, for %d bytes of keys and values; before %d", sizeOf(t, path), m.Bytes, live, before)
	}
	if lines := strings.Join(log.take(), "\n"); !strings.Contains(lines, fmt.Sprintf(`"before"=%d`, before)) {
		t.Errorf("logged %s", lines)
	}
	put(t, db, "new", "value")
	flush(t, db)
	want["new"] = "value"
	close1(t, db)
	expectFile(t, path, want)
}

// TestOpenLeavesOtherFilesAsTheyAre: short ones, full ones, and those over which a process has died.
func TestOpenLeavesOtherFilesAsTheyAre(t *testing.T) {
	for name, c := range map[string]func(t *testing.T, path string){
		"a short file": func(t *testing.T, path string) {
			sparseFile(t, path, 20_000, 100)
			minCompactBytes = 1 << 30
		},
		"a full file": func(t *testing.T, path string) { manyLeaves(t, path) },
		"a start that has died": func(t *testing.T, path string) {
			sparseFile(t, path, 20_000, 100)
			writeFile(t, path+StartingSuffix, "1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			compactSmall(t)
			path := testsupport.Path(t)
			c(t, path)
			before := sizeOf(t, path)
			openSound(t, path, manual)
			if after := sizeOf(t, path); after != before {
				t.Errorf("%d bytes, before %d", after, before)
			}
		})
	}
}

// TestACompactionMayStopAtAnyStep takes an image of the directory before each commit and each sync of the directory: what
// a kill would leave there. Each image is a complete file.
func TestACompactionMayStopAtAnyStep(t *testing.T) { // S1
	compactSmall(t)
	path := testsupport.Path(t)
	want := sparseFile(t, path, 20_000, 100)
	size := sizeOf(t, path)
	var images []map[string]string
	image := func() { images = append(images, directory(t, filepath.Dir(path))) }
	stop := testsupport.EachCommit(t, image)
	before := syncDirectory
	syncDirectory = func(dir string) error { image(); return before(dir) }
	o := manual
	o.MaxPendingBytes = 100_000
	db := openSound(t, path, o)
	stop()
	syncDirectory = before
	close1(t, db)
	expectFile(t, path, want)
	old, both := 0, 0
	for i, files := range images {
		dir := t.TempDir()
		for name, content := range files {
			writeFile(t, filepath.Join(dir, name), content)
		}
		if int64(len(files["cache.db"])) == size {
			old++
		}
		if files["cache.db"+compactingSuffix] != "" {
			both++
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) { expectFile(t, filepath.Join(dir, "cache.db"), want) })
	}
	if both < 5 || old == len(images) {
		t.Errorf("of %d images, %d have a copy, %d the old file", len(images), both, old)
	}
}

// TestAfterAFailedCompactionTheFileIsUsedAsItIs fails one commit after the other, until all succeed.
func TestAfterAFailedCompactionTheFileIsUsedAsItIs(t *testing.T) {
	compactSmall(t)
	path := testsupport.Path(t)
	want := sparseFile(t, path, 20_000, 100)
	before := sizeOf(t, path)
	o := manual
	o.MaxPendingBytes = 200_000
	for n := 0; ; n++ {
		commits := 0
		fail := func() error {
			if commits++; commits > n {
				return syscall.ENOSPC
			}
			return nil
		}
		hook.BeforeWrite.Store(&fail)
		db := openSound(t, path, o)
		hook.BeforeWrite.Store(nil)
		expectContents(t, db, want)
		close1(t, db)
		if after := sizeOf(t, path); commits <= n {
			if after > before/2 || n < 3 {
				t.Errorf("%d bytes after %d commits, before %d", after, n, before)
			}
			break
		} else if after != before {
			t.Fatalf("%d bytes, before %d: %d of its commits have succeeded", after, before, n)
		}
	}
	expectFile(t, path, want)
}

// TestACompactionOnAFullDisk: without room none is begun, and one that runs out of it leaves the old file.
func TestACompactionOnAFullDisk(t *testing.T) {
	compactSmall(t)
	dir := mountSmall(t, 16<<20)
	path := filepath.Join(dir, "cache.db")
	want := sparseFile(t, path, 20_000, 200)
	before := sizeOf(t, path)
	ballast := func(bytes int64) {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		writeFile(t, filepath.Join(dir, "ballast"), repeat("x", int(freeBytes(f)-bytes)))
	}
	ballast(64 << 10)
	var log logged
	close1(t, openSound(t, path, log.options(manual)))
	if lines := log.take(); len(lines) != 0 || sizeOf(t, path) != before {
		t.Errorf("without room: %d bytes, before %d, %q", sizeOf(t, path), before, lines)
	}
	if _, _, err := Compact(t.Context(), path, Options{Logger: &testsupport.Quiet}); !errors.Is(err, syscall.ENOSPC) || sizeOf(t, path) != before {
		t.Errorf("Compact: %v, %d bytes, before %d", err, sizeOf(t, path), before)
	}
	expectContents(t, openSound(t, path, manual), want)
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
}

func TestDamageThatACompactionMeets(t *testing.T) { // S3
	compactSmall(t)
	path := testsupport.Path(t)
	sparseFile(t, path, 20_000, 100)
	fault := func() error { panic("a page cannot be read") }
	hook.BeforeWrite.Store(&fault)
	defer hook.BeforeWrite.Store(nil)
	_, _, err := Compact(t.Context(), path, Options{Logger: &testsupport.Quiet})
	if !errors.Is(err, ErrCorrupt) || len(setAside(t, path)) > 0 {
		t.Errorf("Compact: %v, set aside: %v", err, setAside(t, path))
	}
	openSound(t, path, manual)
	if len(setAside(t, path)) != 1 {
		t.Errorf("set aside: %v", setAside(t, path))
	}
}

func TestCompact(t *testing.T) {
	path := testsupport.Path(t)
	want := sparseFile(t, path, 20_000, 100)
	size := sizeOf(t, path)
	for i := range 2 {
		before, after, err := Compact(t.Context(), path, Options{Logger: &testsupport.Quiet})
		if err != nil || before != size || after != sizeOf(t, path) || i == 0 && after > before/2 || after > before {
			t.Fatalf("%d to %d bytes, %v; %d to %d", before, after, err, size, sizeOf(t, path))
		}
		size = after
	}
	expectFile(t, path, want)
}

func TestCompactRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cache.db")
	o := Options{LockTimeout: -1, Logger: &testsupport.Quiet}
	expect := func(ctx context.Context, want error) {
		t.Helper()
		before := directory(t, dir)
		if _, _, err := Compact(ctx, path, o); !errors.Is(err, want) {
			t.Errorf("%v, expected %v", err, want)
		}
		if diff := cmp.Diff(before, directory(t, dir)); diff != "" {
			t.Errorf("the directory has changed: %.1000s", diff)
		}
	}
	expect(t.Context(), fs.ErrNotExist)
	pid, release := holdFile(t, path)
	expect(t.Context(), ErrLocked)
	if _, _, err := Compact(t.Context(), path, o); holder(path) != "" && !strings.HasSuffix(err.Error(), fmt.Sprintf("process %d", pid)) {
		t.Errorf("%v, expected process %d", err, pid)
	}
	release()
	db := openSound(t, path, manual)
	expect(t.Context(), ErrInUse)
	close1(t, db)
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	expect(stopped, context.Canceled)
	good := directory(t, dir)["cache.db"]
	writeFile(t, path, repeat("no cache file", 1000))
	expect(t.Context(), ErrCorrupt)
	writeFile(t, path, good)
	changeFile(t, path, laterFormat)
	expect(t.Context(), ErrUnknownFormat)
	writeFile(t, path, good)
	if err := os.Mkdir(path+compactingSuffix, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Compact(t.Context(), path, o); err == nil {
		t.Error("a copy was made")
	}
}

// TestAFileIsNoLongerThanMaxFileBytes: past it the disk counts as full, and what is deleted makes room.
func TestAFileIsNoLongerThanMaxFileBytes(t *testing.T) { // S6
	path := testsupport.Path(t)
	o := manual
	o.MaxFileBytes = 12 << 20
	db := openSound(t, path, o)
	value := repeat("v", PageBytes/3)
	want := map[string]string{}
	var err error
	for i := 0; err == nil && i < 100_000; i++ {
		key := fmt.Sprintf("%06d", i*7919%100_000)
		put(t, db, key, value)
		want[key] = value
		if i%100 == 0 {
			err = db.Flush()
		}
	}
	if code, _, problem := db.Problem(); code != CodeNotWritten || !isDiskFull(err) || !isDiskFull(problem) {
		t.Fatalf("%v, %s, %v", err, code, problem)
	}
	if size := sizeOf(t, path); size > o.MaxFileBytes || size < o.MaxFileBytes/2 {
		t.Errorf("the file has %d bytes", size)
	}
	expectContents(t, db, want)
	apply(t, db, func(b *Batch) {
		for key := range want {
			if !strings.HasSuffix(key, "7") {
				b.Delete(testBucket, key)
				delete(want, key)
			}
		}
	})
	flush(t, db)
	if err := db.Err(); err != nil {
		t.Error(err)
	}
	expectContents(t, db, want)
	close1(t, db)
	size := sizeOf(t, path)
	o.MaxFileBytes = size / 2 // A file that is longer already is used all the same.
	db = openSound(t, path, o)
	for key := range want {
		put(t, db, key, "new")
		want[key] = "new"
	}
	flush(t, db)
	close1(t, db)
	if db = openSound(t, path, manual); sizeOf(t, path) != size || len(setAside(t, path)) > 0 {
		t.Errorf("%d bytes, before %d, set aside: %v", sizeOf(t, path), size, setAside(t, path))
	}
	expectContents(t, db, want)
}
