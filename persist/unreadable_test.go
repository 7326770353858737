package persist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// A badSector is a part of a file that cannot be read, as long as it is broken.
type badSector struct{ at atomic.Pointer[sector] }

type sector struct {
	file  os.FileInfo
	begin int64
}

const sectorBytes = 512

// newBadSector is called before any file is open.
func newBadSector(t *testing.T) *badSector {
	t.Helper()
	before, bad := readFile, new(badSector)
	t.Cleanup(func() { readFile = before })
	readFile = func(f io.ReaderAt, b []byte, at int64) (int, error) {
		s := bad.at.Load()
		if s == nil || at >= s.begin+sectorBytes || at+int64(len(b)) <= s.begin {
			return before(f, b, at)
		}
		if info, err := f.(pagedFile).Stat(); err != nil || !os.SameFile(info, s.file) {
			return before(f, b, at)
		}
		n, _ := before(f, b[:max(0, s.begin-at)], at) // As a kernel does.
		return n, syscall.EIO
	}
	return bad
}

// breaks has the sector at a place of the file at path fail.
func (b *badSector) breaks(t *testing.T, path string, begin int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	b.at.Store(&sector{info, begin})
}

func (b *badSector) mend() { b.at.Store(nil) }

// placesOf returns where some pages of a file are.
func placesOf(t *testing.T, path string) map[string]int64 {
	t.Helper()
	im := &image{pageSize: PageBytes, bytes: testsupport.ReadUsed(t, path)}
	meta := im.newestMeta(im.bytes)
	newest := int64(txIDOf(meta)%2) * PageBytes
	leaf := strings.Index(string(im.bytes), repeat("0150", 50)) / PageBytes
	end := len(bytes.TrimRight(im.page(im.bytes, leaf), "\x00")) - 1
	return map[string]int64{
		"the newest meta page": newest,
		"the other meta page":  PageBytes - newest,
		"the root":             int64(binary.NativeEndian.Uint64(meta[metaRootAt:])) * PageBytes,
		"the freelist":         int64(binary.NativeEndian.Uint64(meta[metaFreelistAt:])) * PageBytes,
		"a branch":             int64(im.pagesOf(branchPage)[0]) * PageBytes,
		"a leaf":               int64(leaf) * PageBytes,
		"the end of a leaf":    int64(leaf*PageBytes + end - end%sectorBytes),
	}
}

// findOut tells the DB that its file is damaged, as a fault in the mapping does.
func findOut(t *testing.T, db *DB) {
	t.Helper()
	_ = db.readError(db.bolt, &CorruptError{Err: errors.New("panic: fault")})
	put(t, db, "later", "value")
	flush(t, db)
}

// TestWhatIsBesideASectorThatCannotBeReadIsSalvaged, wherever that is, while the file is in
// use.
func TestWhatIsBesideASectorThatCannotBeReadIsSalvaged(t *testing.T) {
	for place, most := range map[string]int{
		"the newest meta page": 0, "the other meta page": 0, "the freelist": 0, "a leaf": PageBytes / 200, "the end of a leaf": 5,
	} {
		t.Run(place, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // Reads are tried again.
				bad := newBadSector(t)
				path := testsupport.Path(t)
				db := open(t, path, manual)
				put(t, db, "0000", "before") // So that the meta page before the newest one knows of it.
				want := salvageable(t, db)
				put(t, db, "more", "value")
				flush(t, db)
				bad.breaks(t, path, placesOf(t, path)[place])
				findOut(t, db)
				if got := contents(t, db); len(got) < len(want)-most || db.Err() != nil || len(setAside(t, path)) != 1 {
					t.Errorf("%d of %d keys, %v; set aside: %v", len(got), len(want), db.Err(), setAside(t, path))
				}
			})
		})
	}
}

// TestAFileWithASectorThatCannotBeReadIsReplacedAtTheStart by what can be read of it.
func TestAFileWithASectorThatCannotBeReadIsReplacedAtTheStart(t *testing.T) {
	for _, place := range []string{"the newest meta page", "the other meta page", "the freelist", "a branch"} {
		t.Run(place, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad := newBadSector(t)
				path := testsupport.Path(t)
				db := openSound(t, path, manual)
				want := salvageable(t, db)
				put(t, db, "more", "value")
				close1(t, db)
				bad.breaks(t, path, placesOf(t, path)[place])
				db = openSound(t, path, manual)
				if got := contents(t, db); len(setAside(t, path)) != 1 || (len(got) < len(want) && place != "a branch") {
					t.Errorf("%d of %d keys; set aside: %v", len(got), len(want), setAside(t, path))
				}
				if !db.Salvaged(testBucket.Space) && place != "a branch" { // Of the space itself.
					t.Error("nothing says that something may be missing")
				}
			})
		})
	}
}

// TestAFileThatCannotBeReadForAMomentIsOpened, and not replaced.
func TestAFileThatCannotBeReadForAMomentIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := newBadSector(t)
		path := testsupport.Path(t)
		db := openSound(t, path, manual)
		want := salvageable(t, db)
		close1(t, db)
		bad.breaks(t, path, placesOf(t, path)["a branch"])
		time.AfterFunc(readAgainDelay/2, bad.mend)
		db = openSound(t, path, manual)
		expectContents(t, db, want)
		if len(db.SetAside()) != 0 {
			t.Errorf("set aside: %v", db.SetAside())
		}
	})
}

// TestASectorThatACommitCannotReadHasTheFileReplaced: to try again would not help.
func TestASectorThatACommitCannotReadHasTheFileReplaced(t *testing.T) {
	for _, place := range []string{"the newest meta page", "the freelist", "the root", "a branch"} {
		t.Run(place, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // Reads are tried again.
				bad := newBadSector(t)
				path := testsupport.Path(t)
				db := openSound(t, path, manual)
				salvageable(t, db)
				close1(t, db)
				db = openSound(t, path, manual) // Which has yet to look at the leaves.
				bad.breaks(t, path, placesOf(t, path)[place])
				put(t, db, "0150", "new")
				flush(t, db)
				if v, _ := get(t, db, "0150"); v != "new" || len(setAside(t, path)) != 1 {
					t.Errorf("it has %.20q; set aside: %v", v, setAside(t, path))
				}
			})
		})
	}
}

// TestAFileThatBboltPanicsOverIsNotHeld: Open has to lock it again in order to copy it, and
// another process may use it.
func TestAFileThatBboltPanicsOverIsNotHeld(t *testing.T) {
	path := testsupport.Path(t)
	close1(t, openSound(t, path, manual))
	b := testsupport.ReadUsed(t, path)
	im := &image{pageSize: PageBytes, bytes: b}
	for _, id := range im.pagesOf(freelistPage) {
		b[id*PageBytes+pageFlagsAt] = 0x77
	}
	path = testsupport.Path(t)
	writeFile(t, path, string(b))
	if _, err := openBolt(path, nil, false, time.Second); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("bbolt has not panicked: %v", err)
	}
	f, err := lockFile(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

// TestAFileWhoseFormatCannotBeReadIsNotTakenForSomebodyElses: it may be sound.
func TestAFileWhoseFormatCannotBeReadIsNotTakenForSomebodyElses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // Reads are tried again.
		defer func(before func(io.ReaderAt, []byte, int64) (int, error)) { readFile = before }(readFile)
		path := testsupport.Path(t)
		db := openSound(t, path, manual)
		salvageable(t, db)
		close1(t, db)
		root, before := placesOf(t, path)["the root"], readFile
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, failure := range []error{syscall.EIO, syscall.ESTALE, io.EOF} {
			readFile = func(f io.ReaderAt, b []byte, at int64) (int, error) {
				if at == root {
					return 0, failure
				}
				return before(f, b, at)
			}
			if err := checkFormat(f, f.Name()); err == nil || errors.Is(err, ErrUnknownFormat) || isBad(err) == errors.Is(failure, syscall.ESTALE) {
				t.Errorf("%v: %v", failure, err)
			}
		}
	})
}

// TestReadsThatFailForAMomentLoseNothing: the file is sound, or as damaged as it was before.
func TestReadsThatFailForAMomentLoseNothing(t *testing.T) {
	for _, failure := range []syscall.Errno{syscall.EIO, syscall.ETIMEDOUT, syscall.ENOMEM} {
		for _, when := range []string{"in use", "while a damaged file is salvaged"} {
			t.Run(failure.Error()+" "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { checkBlip(t, failure, when == "in use") })
			})
		}
	}
}

func checkBlip(t *testing.T, failure syscall.Errno, inUse bool) {
	t.Helper()
	before, beforeCrash := readFile, crashpoint
	defer func() { readFile, crashpoint = before, beforeCrash }()
	path := testsupport.Path(t)
	var (
		until  atomic.Int64
		failed atomic.Int64
		info   atomic.Pointer[os.FileInfo]
	)
	readFile = func(f io.ReaderAt, b []byte, at int64) (int, error) {
		if time.Now().UnixNano() < until.Load() {
			if of, err := f.(pagedFile).Stat(); err == nil && os.SameFile(of, *info.Load()) {
				failed.Add(1)
				return 0, &os.PathError{Op: "read", Path: path, Err: failure}
			}
		}
		return before(f, b, at)
	}
	sound := testsupport.Path(t)
	db := openSound(t, sound, manual)
	for i := range 600 {
		put(t, db, fmt.Sprintf("%04d", i), "value")
	}
	flush(t, db)
	want := contents(t, db)
	close1(t, db)
	testsupport.CopyFile(t, sound, path)
	now, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	info.Store(&now)
	fail := func() { until.Store(time.Now().Add(200 * time.Millisecond).UnixNano()) }
	if inUse {
		db = open(t, path, manual)
		fail()
		if _, found, err := lookup(db, testBucket, "0001"); !found && err == nil {
			t.Error("a key that is there was said not to be")
		}
	} else {
		overwrite(t, path, placesOf(t, path)["the freelist"]+pageFlagsAt, []byte{leafPage})
		crashpoint = func(what string) error {
			if what == "the new file is begun" {
				fail()
			}
			return nil
		}
		db = open(t, path, manual)
	}
	after(time.Hour)
	if got := contents(t, db); !maps.Equal(got, want) || failed.Load() == 0 {
		t.Errorf("%d of %d keys, %d reads have failed; %v", len(got), len(want), failed.Load(), db.Err())
	}
}
