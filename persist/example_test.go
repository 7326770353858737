package persist_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/warmwatch/warmwatch/persist"
)

// What a batch changes is visible at once, as a whole, and durable after Flush.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "persist")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	bucket := persist.Bucket{Space: "fruit", Name: "colours"}
	process := func(use func(*persist.DB) error) {
		db, err := persist.Open(context.Background(), filepath.Join(dir, "cache.db"), persist.Options{})
		if err != nil {
			log.Fatal(err)
		}
		defer db.Close()
		if err := use(db); err != nil {
			log.Fatal(err)
		}
	}
	process(func(db *persist.DB) error {
		err := db.Update(func(b *persist.Batch) {
			b.Put(bucket, "apple", []byte("red"))
			b.Put(bucket, "lime", []byte("green"))
		})
		if err != nil {
			return err
		}
		return db.Flush()
	})
	process(func(db *persist.DB) error {
		return db.Read(bucket.Space, func(s *persist.Snapshot) error {
			return s.Scan(bucket.Name, "", func(it *persist.Item) (bool, error) {
				value, err := it.Payload()
				fmt.Printf("%s: %s\n", it.Key, value)
				return true, err
			})
		})
	})
	// Output:
	// apple: red
	// lime: green
}
