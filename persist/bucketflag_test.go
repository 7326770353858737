package persist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestAKeyThatDamageMakesABucketIsDamage, and not missing (A7, S2): one bit in the flags of a leaf's element.
func TestAKeyThatDamageMakesABucketIsDamage(t *testing.T) {
	path := testsupport.Path(t)
	o := manual
	o.Logger = &testsupport.Quiet
	db, err := Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for i := range 300 {
		put(t, db, fmt.Sprintf("key%04d", i), "a value that is so long that the keys take a page of their own")
	}
	flush(t, db)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const isLeaf = 2
	flipped := 0
	for id := 2; id < len(b)/PageBytes; id++ {
		page := b[id*PageBytes:][:PageBytes]
		if binary.NativeEndian.Uint16(page[8:]) != isLeaf {
			continue
		}
		for i := range int(binary.NativeEndian.Uint16(page[10:])) {
			at := 16 + 16*i
			from, size := int(binary.NativeEndian.Uint32(page[at+4:])), int(binary.NativeEndian.Uint32(page[at+8:]))
			if at+from+size <= len(page) && bytes.Equal(page[at+from:][:size], []byte(string(keyPrefix)+"key0100")) {
				if _, err := f.WriteAt([]byte{1}, int64(id*PageBytes+at)); err != nil {
					t.Fatal(err)
				}
				flipped++
			}
		}
	}
	if flipped == 0 {
		t.Fatal("the key is on no leaf")
	}
	read := func(it *Item) error {
		_, err := it.Payload()
		return err
	}
	if found, err := db.View(testBucket, "key0100", read); !errors.Is(err, ErrCorrupt) {
		t.Errorf("View finds it: %v, %v", found, err)
	}
	s, err := db.Snapshot(testBucket.Space)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Scan(testBucket.Name, "", func(it *Item) (bool, error) { return true, read(it) }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Scan: %v", err)
	}
}
