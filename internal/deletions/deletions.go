// Package deletions keeps the last known objects of deletions in the file until a reconciler has worked on them.
package deletions

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/warmwatch/warmwatch/internal/keyfield"
	"github.com/warmwatch/warmwatch/persist"
)

// BucketName is the name of the only bucket of a Store in its space. It has records, by the reconciler's name, the
// object's key, when the record was put, and the object's uid.
const BucketName = "deleted"

// A Store has the deleted objects of all reconcilers of an informer. It is safe for concurrent use.
type Store struct {
	db     *persist.DB
	bucket persist.Bucket
}

// New returns the Store of a space.
func New(db *persist.DB, space string) Store {
	return Store{db, persist.Bucket{Space: space, Name: BucketName}}
}

// Keep puts the last known object of a deletion into the file, in place of an earlier state of this object. If a
// durable handler calls it before it returns, the object is in the file no later than the acknowledgement.
func (s Store) Keep(name, key, uid string, object []byte) error {
	prefix, suffix := keyfield.Of(name)+keyfield.Of(key), "/"+uid
	stored := fmt.Sprintf("%s%016x%s", prefix, time.Now().UnixNano(), suffix)
	if len(stored) > persist.MaxKeyBytes {
		return fmt.Errorf("warmwatch: key and uid of a deleted object are too long: %d bytes", len(stored))
	}
	var earlier []string
	err := s.scan(prefix, func(it *persist.Item) {
		if strings.HasSuffix(it.Key, suffix) {
			earlier = append(earlier, it.Key)
		}
	})
	if err != nil && !errors.Is(err, persist.ErrCorrupt) { // Else the reconciler gets the earlier state, too.
		return err
	}
	err = s.db.Update(func(b *persist.Batch) {
		s.delete(b, earlier)
		b.Put(s.bucket, stored, object)
	})
	return err
}

// Read calls fn with each deleted object of a key, oldest first, or with the error of one that is damaged. fn may not
// keep the object. Read returns what Remove takes once the key has been worked on.
func (s Store) Read(name, key string, fn func(object []byte, err error)) (stored []string, err error) {
	err = s.scan(keyfield.Of(name)+keyfield.Of(key), func(it *persist.Item) {
		stored = append(stored, it.Key)
		fn(it.Payload())
	})
	return stored, err
}

// Keys returns the keys of the deleted objects of a name, and whether some of these objects are damaged.
func (s Store) Keys(name string) (keys []string, damaged bool, err error) {
	err = s.scan(keyfield.Of(name), func(it *persist.Item) {
		_, unreadable := it.Payload()
		_, rest, _ := keyfield.Cut(it.Key)
		key, _, ok := keyfield.Cut(rest)
		damaged = damaged || unreadable != nil || !ok
		keys = append(keys, key)
	})
	return keys, damaged, err
}

// Remove removes what Read has returned.
func (s Store) Remove(stored []string) error {
	if len(stored) == 0 {
		return nil
	}
	return s.db.Update(func(b *persist.Batch) { s.delete(b, stored) })
}

// Forget removes all deleted objects of a name.
func (s Store) Forget(name string) error {
	var stored []string
	if err := s.scan(keyfield.Of(name), func(it *persist.Item) { stored = append(stored, it.Key) }); err != nil {
		return err
	}
	return s.Remove(stored)
}

func (s Store) delete(b *persist.Batch, stored []string) {
	for _, key := range stored {
		b.Delete(s.bucket, key)
	}
}

func (s Store) scan(prefix string, fn func(*persist.Item)) error {
	return s.db.Read(s.bucket.Space, func(snapshot *persist.Snapshot) error {
		return snapshot.Scan(BucketName, prefix, func(it *persist.Item) (bool, error) {
			ours := strings.HasPrefix(it.Key, prefix)
			if ours {
				fn(it)
			}
			return ours, nil
		})
	})
}
