package persist

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	bolt "go.etcd.io/bbolt"
)

// OpenReadOnly opens a file that no process uses, to be looked at. It checks the file as [Open] does, and changes neither
// the file nor anything beside it. Errors are [ErrLocked], which names the process where the system tells, [ErrCorrupt],
// [ErrUnknownFormat], and those of the file system. Until the DB is closed, Open waits. Its Update returns [ErrClosed].
func OpenReadOnly(path string) (*DB, error) {
	o, err := Options{}.withDefaults()
	if err == nil {
		err = checkRegular(path)
	}
	if err != nil {
		return nil, err
	}
	db := newDB(o)
	db.path, db.phase = path, reading
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var in *inspector
	if err = tryLock(f, lockShared); err == nil {
		in, err = inspect(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	b, err := db.openBolt(f)
	if err != nil {
		return nil, err
	}
	if err := in.walk(b.DB); err != nil {
		return nil, errors.Join(err, guard(b.Close))
	}
	db.boltTxID = in.txID
	db.use(b)
	return db, nil
}

// Buckets returns the buckets in the file, sorted by space and name.
func (db *DB) Buckets() (buckets []Bucket, err error) {
	s, err := db.Snapshot("")
	if err != nil || s.tx == nil {
		return nil, err
	}
	defer s.Close()
	err = guard(func() error {
		return eachBucket(s.tx, func(name Bucket, _ *bolt.Bucket) error {
			buckets = append(buckets, name)
			return nil
		})
	})
	return buckets, db.readError(s.bolt, Bucket{}, err)
}

// eachBucket calls fn for the buckets of all spaces, in order.
func eachBucket(tx *bolt.Tx, fn func(Bucket, *bolt.Bucket) error) error {
	return tx.ForEach(func(space []byte, b *bolt.Bucket) error {
		if string(space) == formatBucket {
			return nil
		}
		return b.ForEachBucket(func(name []byte) error {
			return fn(Bucket{string(space), string(name)}, b.Bucket(name))
		})
	})
}

const (
	maxCopies = 10
	copyBytes = 16 << 20 // At most so much between two looks at the context.
)

// CopyFile copies a file as it is at one moment, although another process may use it. An error leaves no copy.
func CopyFile(ctx context.Context, from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(copyFile(ctx, in, out), out.Close()); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

// copyFile copies until no commit has ended meanwhile. A commit writes only to pages that the newest transaction does not
// use, and then one meta page.
func copyFile(ctx context.Context, in, out *os.File) error {
	for range maxCopies {
		before, err := newestMeta(in)
		if err != nil {
			return err
		}
		whole := io.NewSectionReader(in, 0, 1<<62)
		_, err = out.Seek(0, io.SeekStart)
		for n := int64(copyBytes); err == nil && n == copyBytes; {
			n, err = io.CopyN(out, whole, copyBytes)
			if errors.Is(err, io.EOF) {
				err = nil
			}
			if ctx.Err() != nil {
				err = ctx.Err()
			}
		}
		if err != nil {
			return err
		}
		if after, err := newestMeta(in); err != nil || txIDOf(after) == txIDOf(before) {
			return err
		}
	}
	return fmt.Errorf("persist: copy %s: it was written to during each of %d copies", in.Name(), maxCopies)
}
