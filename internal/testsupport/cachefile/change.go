package cachefile

import (
	"bytes"
	"os"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// ChangeValue changes a value of informers in a file that is not open.
func ChangeValue(t *testing.T, path, bucket, key string, change func([]byte)) {
	t.Helper()
	found := false
	ChangeBucket(t, path, bucket, func(b *bolt.Bucket) error {
		v := slices.Clone(b.Get([]byte("k" + key)))
		if v == nil {
			return nil
		}
		found = true
		change(v)
		return b.Put([]byte("k"+key), v)
	})
	if !found {
		t.Fatalf("%s has no %s", bucket, key)
	}
}

// Change changes the spaces of informers in a file that is not open.
func Change(t *testing.T, path string, change func(*bolt.Bucket) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			if string(name) == "warmwatch" {
				return nil
			}
			return change(b)
		})
	}); err != nil {
		t.Fatal(err)
	}
}

// FlipBits inverts the first byte of a text wherever a file has it. Doing it again restores
// the file.
func FlipBits(t *testing.T, path, text string) {
	t.Helper()
	b := testsupport.ReadUsed(t, path)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rest := []byte(text[1:])
	for at := 1; ; at++ {
		next := bytes.Index(b[at:], rest)
		if next < 0 {
			return
		}
		at += next
		if first := b[at-1]; first == text[0] || first == ^text[0] {
			if _, err := f.WriteAt([]byte{^first}, int64(at-1)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// ChangeBucket changes a bucket of informers in a file that is not open.
func ChangeBucket(t *testing.T, path, bucket string, change func(*bolt.Bucket) error) {
	t.Helper()
	Change(t, path, func(space *bolt.Bucket) error {
		if b := space.Bucket([]byte(bucket)); b != nil {
			return change(b)
		}
		return nil
	})
}

// KeyCount counts the keys of a bucket in the file.
func KeyCount(t *testing.T, path, bucket string) (n int) {
	t.Helper()
	View(t, path, func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
			if b := space.Bucket([]byte(bucket)); b != nil {
				n += b.Stats().KeyN
			}
			return nil
		})
	})
	return n
}
