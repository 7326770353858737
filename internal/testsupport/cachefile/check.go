// Package cachefile checks and changes cache files that no process has open.
package cachefile

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/record"
)

// Check checks a cache file that is not open: bbolt's own checks, that
// objects can be read, and A2.
func Check(t *testing.T, path string) {
	t.Helper()
	View(t, path, func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("bbolt: %v", err)
		}
		return tx.ForEach(func(space []byte, b *bolt.Bucket) error {
			if string(space) == "warmwatch" {
				return nil
			}
			if err := checkSpace(b); err != nil {
				t.Errorf("%s: %v", space, err)
			}
			return nil
		})
	})
}

// View reads a file that is not open.
func View(t *testing.T, path string, view func(*bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		t.Errorf("open %s: %v", path, err)
		return
	}
	defer db.Close()
	if err := db.View(view); err != nil {
		t.Error(err)
	}
}

func checkSpace(space *bolt.Bucket) error {
	var store struct {
		ResourceVersion string
		Count           int
	}
	if raw := Payload(space, "store", "state"); raw == nil {
		return nil // Nothing was written yet.
	} else if err := json.Unmarshal(raw, &store); err != nil {
		return err
	}
	if raw := Payload(space, "checkpoint", "resume"); raw != nil {
		if _, err := checkpoint.Parse(raw, store.ResourceVersion); err != nil {
			return err
		}
	}
	keys := map[string]bool{}
	if objects := space.Bucket([]byte("objects")); objects != nil {
		err := objects.ForEach(func(k, v []byte) error {
			if _, err := record.Parse(v[:len(v)-4]); err != nil {
				return fmt.Errorf("object %q: %w", k, err)
			}
			keys[string(k[1:])] = true
			return nil
		})
		if err != nil {
			return err
		}
	}
	if store.Count != len(keys) {
		return fmt.Errorf("%d objects are stored, and counted %d", len(keys), store.Count)
	}
	return nil
}

// Payload returns a value without its checksum, and nil if there is none.
func Payload(space *bolt.Bucket, bucket, key string) []byte {
	b := space.Bucket([]byte(bucket))
	if b == nil {
		return nil
	}
	raw := b.Get([]byte("k" + key))
	if len(raw) < 4 {
		return nil
	}
	return raw[:len(raw)-4]
}
