package persist

import (
	"errors"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestReadJSON: a value reads the same from memory and from the file.
func TestReadJSON(t *testing.T) {
	type counted struct {
		N int `json:"n"`
	}
	db := openSound(t, testsupport.Path(t), manual)
	for key, value := range map[string]string{"value": `{"n":3}`, "null": "null", "none": "{"} {
		put(t, db, key, value)
	}
	for _, from := range []string{"memory", "file"} {
		for key, want := range map[string]int{"value": 3, "null": 0} {
			var got counted
			found, err := db.View(testBucket, key, func(it *Item) (err error) {
				got, err = ReadJSON[counted](it)
				return err
			})
			if !found || err != nil || got.N != want {
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
