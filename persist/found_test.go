package persist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestAFreelistEntryThatNamesAPageOfALeafIsFound before anything is written: bbolt would
// take the page, which has a part of a large value.
func TestAFreelistEntryThatNamesAPageOfALeafIsFound(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	for i := range 20 {
		put(t, db, fmt.Sprintf("large%04d", i), repeat("v", 40_000))
	}
	flush(t, db)
	other := Bucket{testBucket.Space, "other"}
	for range 2 { // So that there are free pages.
		for i := range 30 {
			apply(t, db, func(b *Batch) { b.Put(other, fmt.Sprint(i), Bytes(repeat("w", 3000))) })
		}
		flush(t, db)
		apply(t, db, func(b *Batch) { b.Drop(other) })
		flush(t, db)
	}
	want := contents(t, db)
	close1(t, db)

	b := readTrimmed(t, path)
	continued := map[uint64]bool{}
	for id := 4; id < len(b)/PageBytes; id++ {
		page := b[id*PageBytes:]
		if binary.NativeEndian.Uint64(page) == uint64(id) && binary.NativeEndian.Uint16(page[pageFlagsAt:]) == leafPage {
			for more := range binary.NativeEndian.Uint32(page[pageOverflowAt:]) {
				continued[uint64(id)+uint64(more)+1] = true
			}
		}
	}
	freelist := int(binary.NativeEndian.Uint64((&image{pageSize: PageBytes}).newestMeta(b)[metaFreelistAt:])) * PageBytes
	at, to := 0, uint64(0)
	for i := range int(binary.NativeEndian.Uint16(b[freelist+pageCountAt:])) {
		entry := freelist + pageHeaderBytes + 8*i
		for bit := range bits.Len(uint(len(b) / PageBytes)) {
			if id := binary.NativeEndian.Uint64(b[entry:]) ^ 1<<bit; continued[id] {
				at, to = entry, id
			}
		}
	}
	if at == 0 {
		t.Fatal("no flip of one bit of the freelist names a page of a leaf")
	}
	overwrite(t, path, int64(at), binary.NativeEndian.AppendUint64(nil, to))

	db = open(t, path, manual)
	if len(setAside(t, path)) != 1 {
		t.Error("it was not found at the start")
	}
	for range 20 { // As many commits as take some page.
		apply(t, db, func(b *Batch) { b.Put(other, "small", Bytes("value")) })
		flush(t, db)
	}
	for key, value := range want {
		if got, _, err := lookup(db, testBucket, key); got != value || err != nil {
			t.Errorf("%s has lost its value: %d bytes, %v", key, len(got), err)
		}
	}
}

// TestASnapshotOfAFileThatAnotherWritesToReturns: somebody who does not respect the lock has
// committed to the file.
func TestASnapshotOfAFileThatAnotherWritesToReturns(t *testing.T) {
	path, copied := testsupport.Path(t), testsupport.Path(t)
	o := manual
	o.Logger = &testsupport.Quiet
	db, err := Open(path, o) // The file is not checked afterwards: two have written to it.
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	put(t, db, "a", "1")
	flush(t, db)
	copyFile(t, path, copied)
	other := openSound(t, copied, manual)
	for _, value := range []string{"2", "3"} {
		put(t, other, "b", value)
		flush(t, other)
	}
	close1(t, other)
	b, err := os.ReadFile(copied)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, path, 0, b)
	done := make(chan error, 1)
	go func() {
		s, err := db.Snapshot(testBucket.Space)
		if err == nil {
			s.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		t.Log(err)
	case <-time.After(time.Minute):
		t.Fatal("the snapshot does not return")
	}
	put(t, db, "a", "2")
	if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	flush(t, db)
	if v, _, err := lookup(db, testBucket, "a"); v != "2" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}

// bytesFile is a file in memory.
type bytesFile []byte

func (f bytesFile) ReadAt(b []byte, at int64) (int, error) { return copy(b, f[at:]), nil }
func (f bytesFile) Stat() (os.FileInfo, error)             { return nil, errors.ErrUnsupported }

// TestAFreelistOfManyEntriesThatHasOnePageMoreIsFound: its header does not have the count.
func TestAFreelistOfManyEntriesThatHasOnePageMoreIsFound(t *testing.T) {
	const entries, pages = 70_000, (pageHeaderBytes+8*(70_000+1))/PageBytes + 1
	b := make([]byte, (pages+3)*PageBytes)
	binary.NativeEndian.PutUint64(b[pageHeaderBytes:], entries)
	in := &inspector{f: bytesFile(b), pageSize: PageBytes, pages: 2 * entries}
	for more, sound := range map[uint64]bool{0: true, 2: false} {
		h := pageHeader{flags: freelistPage, count: manyInFirst, bytes: (pages + more) * PageBytes}
		if err := in.checkFreelistHeader(0, h); (err == nil) != sound {
			t.Errorf("%d pages more: %v", more, err)
		}
	}
}

// TestErrorsThatBboltSaysInWordsAreTheDisks: db.grow in its db.go does not wrap them.
func TestErrorsThatBboltSaysInWordsAreTheDisks(t *testing.T) {
	full := errorOfCommit(errors.New("file resize error: " + (&os.PathError{Op: "truncate", Path: "cache.db", Err: syscall.ENOSPC}).Error()))
	if !isDiskFull(full) || errors.Is(full, ErrCorrupt) {
		t.Errorf("%v is not a full disk", full)
	}
	unsynced := errorOfCommit(errors.New("file sync error: " + (&os.PathError{Op: "sync", Path: "cache.db", Err: syscall.EIO}).Error()))
	if !isUnreadable(unsynced) || isDiskFull(unsynced) {
		t.Errorf("%v is not the disk's", unsynced)
	}
}

// TestAFileWhoseBeginningWasCutIsBlank: of the four pages that bbolt begins a file with, any
// may be on the disk after the power was cut. A mount point cannot be replaced.
func TestAFileWhoseBeginningWasCutIsBlank(t *testing.T) {
	begun := testsupport.Path(t)
	db0, err := bolt.Open(begun, 0o600, boltOptions(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := db0.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(begun)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, image []byte, want bool) {
		path := testsupport.Path(t)
		if err := os.WriteFile(path, image, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got := isBlank(f); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	for subset := range 16 {
		image := make([]byte, len(whole))
		for page := range 4 {
			if subset&(1<<page) != 0 {
				copy(image[page*PageBytes:(page+1)*PageBytes], whole[page*PageBytes:])
			}
		}
		check(fmt.Sprintf("pages %04b", subset), image, true)
	}
	used := testsupport.Path(t)
	db := openSound(t, used, manual)
	put(t, db, "key", "value")
	close1(t, db)
	b := readTrimmed(t, used)
	check("a file with a value", b, false)
	clear(b[:PageBytes])
	check("one whose first page is lost", b, false)
	clear(b[:2*PageBytes])
	check("one whose first two pages are lost", b, false)
}

// TestAnAbandonedFileOfTheFutureIsRemoved: the clock may have gone back since.
func TestAnAbandonedFileOfTheFutureIsRemoved(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	left := db.path + newSuffix + "1"
	if err := os.WriteFile(left, []byte("half of a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(24 * time.Hour)
	if err := os.Chtimes(left, then, then); err != nil {
		t.Fatal(err)
	}
	db.removeAbandoned()
	if _, err := os.Stat(left); abandonedAge == 0 && err == nil {
		t.Error("it is still there, and nobody holds its lock")
	}
}

// TestAfterAFailedCommitTheFileIsSyncedAgain, with its newest meta page, before the next
// attempt: bbolt believes that page, and the disk may not have it.
func TestAfterAFailedCommitTheFileIsSyncedAgain(t *testing.T) {
	path := testsupport.Path(t)
	db := open(t, path, manual)
	put(t, db, "first", "1")
	flush(t, db)
	syncs := 0
	db.bolt.sync = func() error { syncs++; return db.bolt.file.Sync() }
	put(t, db, "second", "2")
	flush(t, db)
	if syncs != 0 {
		t.Errorf("%d more fsyncs without a failure", syncs)
	}
	fill(db, true)
	put(t, db, "large", repeat("x", 1<<20))
	if err := db.Flush(); err == nil {
		t.Fatal("the commit did not fail")
	}
	fill(db, false)
	flush(t, db)
	if syncs != 1 {
		t.Errorf("%d fsyncs before the next attempt, expected 1", syncs)
	}
}
