package persist

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	bolt "go.etcd.io/bbolt"
)

// OpenReadOnly opens a file that no process uses, for reading. It checks the file as [Open] does. It changes nothing,
// neither in the file nor beside it. Errors are [ErrLocked], which names the process where the system tells,
// [ErrCorrupt], [ErrUnknownFormat], and those of the file system. Until the DB is closed, Open waits for it. The DB's
// Update returns [ErrClosed].
func OpenReadOnly(path string) (*DB, error) {
	db, err := OpenMemory(Options{})
	if err := cmp.Or(err, checkRegular(path)); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	db.path, db.phase = path, reading
	b, err := db.openBolt(f) // It takes a lock that excludes writers. Without the freelist, bbolt reads nothing but the meta pages.
	if err != nil {
		return nil, err
	}
	in, err := inspect(f)
	if err == nil {
		err = in.walk(b.DB)
	}
	if err != nil {
		return nil, errors.Join(err, guard(b.Close))
	}
	db.boltTxID = in.txID
	db.use(b)
	return db, nil
}

// Buckets returns the buckets in the file, sorted by space and name.
func (db *DB) Buckets() (names []Bucket, err error) {
	err = db.Read("", func(s *Snapshot) error {
		if s.tx == nil {
			return nil
		}
		return db.readError(s.bolt, Bucket{}, guard(func() (err error) {
			names, err = bucketsIn(s.tx)
			return err
		}))
	})
	return names, err
}

// bucketsIn returns the buckets of all spaces. The bucket of the format has none.
func bucketsIn(tx *bolt.Tx) (names []Bucket, err error) {
	err = tx.ForEach(func(space []byte, b *bolt.Bucket) error {
		return b.ForEachBucket(func(name []byte) error {
			names = append(names, Bucket{string(space), string(name)})
			return nil
		})
	})
	return names, err
}

const maxCopies = 10

// CopyFile copies a file as of one commit, although another process may use it. After an error the copy is not whole.
func CopyFile(ctx context.Context, from, to string) error {
	if err := checkRegular(from); err != nil {
		return err
	}
	for range maxCopies {
		whole, err := copyFile(from, to)
		if err = cmp.Or(err, ctx.Err()); whole || err != nil {
			return err
		}
	}
	return fmt.Errorf("persist: copy %s: it was written to during each of %d copies", from, maxCopies)
}

// copyFile reports whether no commit ended meanwhile. A commit writes only to pages that the newest transaction does
// not use, and then one meta page.
func copyFile(from, to string) (whole bool, err error) {
	in, err := os.Open(from)
	if err != nil {
		return false, err
	}
	defer func() { _ = in.Close() }()
	before, err := newestMeta(in)
	if err != nil {
		return false, err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return false, err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return false, err
	}
	after, err := newestMeta(in)
	return err == nil && txIDOf(after) == txIDOf(before), err
}
