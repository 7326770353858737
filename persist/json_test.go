package persist

import (
	"errors"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

type counted struct {
	N int `json:"n"`
}

func (c counted) SizeBytes() int                      { return 8 }
func (c counted) AppendTo(dst []byte) ([]byte, error) { return AppendJSON(dst, c) }

// TestReadJSON: a value reads the same from memory and from the file, and Bytes are a payload in both.
func TestReadJSON(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	apply(t, db, func(b *Batch) {
		b.Put(testBucket, "value", counted{1})
		b.Put(testBucket, "pointer", &counted{2})
		b.Put(testBucket, "bytes", Bytes(`{"n":3}`))
		b.Put(testBucket, "null", Bytes("null"))
		b.Put(testBucket, "none", Bytes("{"))
	})
	for _, from := range []string{"memory", "file"} {
		for key, want := range map[string]int{"value": 1, "pointer": 2, "bytes": 3, "null": 0} {
			var got *counted
			found, err := db.View(testBucket, key, func(it *Item) (err error) {
				got, err = ReadJSON[counted](it)
				return err
			})
			if !found || err != nil || got == nil || got.N != want {
				t.Errorf("%s, %s: %v, %v, %v, expected %d", from, key, got, found, err, want)
			}
		}
		_, err := db.View(testBucket, "none", func(it *Item) error {
			_, err := ReadJSON[counted](it)
			return err
		})
		corrupt, ok := errors.AsType[*CorruptError](err)
		if !ok || corrupt.Bucket != testBucket || corrupt.Key != "none" || isFileDamage(err) {
			t.Errorf("%s: error %v", from, err)
		}
		flush(t, db)
	}
}
