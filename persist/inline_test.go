package persist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestASmallBucketThatIsDamagedInUseIsNotWrittenTo: bbolt would make pointers of the
// lengths in it.
func TestASmallBucketThatIsDamagedInUseIsNotWrittenTo(t *testing.T) {
	for _, length := range []uint32{0x7f, 0x7fffffff} { // Of the key: beyond the bucket, and beyond all memory.
		path := testsupport.Path(t)
		db := openSound(t, path, manual)
		apply(t, db, func(b *Batch) { b.Put(testBucket, "small", Bytes("value of a small bucket")) })
		flush(t, db)
		damageInline(t, path, length)
		apply(t, db, func(b *Batch) { b.Put(testBucket, "another", Bytes("1")) })
		if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		flush(t, db)
		if len(setAside(t, path)) != 1 {
			t.Errorf("the damage was not found: %q", setAside(t, path))
		}
		if got := contents(t, db); got["another"] != "1" {
			t.Errorf("the file has %q", got)
		}
	}
}

// damageInline changes the length of the first key in a bucket that is within a page.
func damageInline(t *testing.T, path string, length uint32) {
	t.Helper()
	b := testsupport.ReadUsed(t, path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content, found := []byte(string(keyPrefix)+"small"+"value of a small bucket"), false
	for at := bytes.Index(b, content); at >= 0; at = bytes.Index(b, content) {
		// flags, pos, ksize, vsize, and the content right behind the only element.
		if _, err := f.WriteAt(binary.NativeEndian.AppendUint32(nil, length), int64(at-elementBytes+8)); err != nil {
			t.Fatal(err)
		}
		b[at], found = 0, true
	}
	if !found {
		t.Fatal("there is no such bucket")
	}
}
