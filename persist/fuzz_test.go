package persist

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// FuzzOpen opens files with damages, reads all that they seem to have, writes
// and closes. The input is a list of edits of a sound file, of three bytes
// of offset and one of content each: a whole file would be too much to search.
func FuzzOpen(f *testing.F) {
	path := filepath.Join(f.TempDir(), "seed.db")
	db := open(f, path, manual)
	for i := range 120 {
		put(f, db, strings.Repeat(string(rune('a'+i%26)), i), "value")
	}
	apply(f, db, func(b *Batch) { b.Put(Bucket{"other", "bucket"}, "", []byte("value")) })
	flush(f, db)
	if err := db.Close(); err != nil {
		f.Fatal(err)
	}
	sound := testsupport.ReadUsed(f, path)
	f.Add([]byte{})
	for at := 0; at < len(sound); at += PageBytes {
		for _, in := range []int{0, pageFlagsAt, pageCountAt, pageOverflowAt, 16, 24, 32, 48, 56} {
			f.Add([]byte{byte((at + in) >> 16), byte((at + in) >> 8), byte(at + in), 1})
		}
	}
	f.Fuzz(func(t *testing.T, edits []byte) {
		content := slices.Clone(sound)
		for ; len(edits) >= 4; edits = edits[4:] {
			at := int(edits[0])<<16 | int(edits[1])<<8 | int(edits[2])
			content[at%len(content)] = edits[3]
		}
		path := testsupport.Path(t)
		resealMetas(content)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := Open(t.Context(), path, Options{CommitInterval: manual.CommitInterval, Logger: &testsupport.Quiet})
		if err != nil {
			t.Fatal(err)
		}
		readBuckets(t, db)
		for range 2 {
			if err := db.Update(func(b *Batch) {
				b.Put(testBucket, "key", []byte("after"))
				b.Drop(Bucket{"other", "bucket"})
				b.Put(Bucket{"other", "bucket"}, "key", []byte("after"))
			}); err != nil {
				t.Fatal(err)
			}
			if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			readBuckets(t, db)
		}
		if err := db.Close(); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		if db, err = Open(t.Context(), path, Options{CommitInterval: manual.CommitInterval, Logger: &testsupport.Quiet}); err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		// A page that says it is longer than it is lets bbolt overwrite another
		// one: then keys are lost, and found to be. No value is ever wrong.
		if v, found, err := lookup(db, testBucket, "key"); (found && v != "after") || (err != nil && !errors.Is(err, ErrCorrupt)) {
			t.Fatalf("what was written is %q, %v, %v", v, found, err)
		}
	})
}

// resealMetas makes the checksums of the meta pages right, so that what else
// they say is believed.
func resealMetas(content []byte) {
	for id := range 2 {
		at := id*PageBytes + metaOffset
		if len(content) >= at+metaBytes && binary.NativeEndian.Uint32(content[at:]) == metaMagic {
			binary.NativeEndian.PutUint64(content[at+metaChecksumAt:], metaChecksum(content[at:]))
		}
	}
}

// readBuckets reads the buckets that the seed has, and those that bbolt lists.
func readBuckets(t *testing.T, db *DB) {
	t.Helper()
	buckets := []Bucket{testBucket, {"other", "bucket"}}
	if b := db.bolt; b != nil {
		err := guard(func() error {
			return b.View(func(tx *bolt.Tx) error {
				return tx.ForEach(func(space []byte, sb *bolt.Bucket) error {
					if sb == nil || string(space) == formatBucket {
						return nil
					}
					return sb.ForEachBucket(func(name []byte) error {
						if len(buckets) < 20 {
							buckets = append(buckets, Bucket{string(space), string(name)})
						}
						return nil
					})
				})
			})
		})
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	}
	for _, bucket := range buckets {
		s, err := db.Snapshot(bucket.Space)
		if err == nil {
			n := 0
			err = s.Scan(bucket.Name, "", func(it *Item) (bool, error) {
				_, _ = text(it)
				n++
				return n < 10_000, nil
			})
			s.Close()
		}
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		if _, _, err := lookup(db, bucket, "key"); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	}
}
