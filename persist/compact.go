package persist

import (
	"cmp"
	"context"
	"os"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// compactingSuffix is the suffix of the file that a compaction writes. When that is complete, it replaces the cache
// file.
const compactingSuffix = ".compacting"

// minCompactBytes is the length from which on Open compacts a file. Tests replace it.
var minCompactBytes int64 = 32 << 20

// Compact makes the file at path as small as it can be. It returns the lengths of the file before and after. Like
// [Open] it waits for another process. It sets nothing aside. Errors are [ErrLocked], which names that process where
// the system tells, [ErrInUse], [ErrCorrupt], [ErrUnknownFormat], those of ctx, and those of the file system.
func Compact(ctx context.Context, path string, o Options) (before, after int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	o.compact = true
	db, err := Open(ctx, path, o)
	if err != nil {
		return 0, 0, err
	}
	return info.Size(), db.Metrics().Bytes, db.Close()
}

// compact replaces a sound file by a smaller one, and returns the file to use. Open does so if more than half of the
// file is free and there is room. After an error it uses the old file, unless that is damaged.
func (db *DB) compact(ctx context.Context, old *handle) (*handle, error) {
	begin, m := time.Now(), Metrics{}
	m.measure(old.file)
	used := m.Bytes - m.FreeBytes
	if !db.opts.compact && (m.Bytes < minCompactBytes || used >= m.FreeBytes || freeBytes(old.file) < used) {
		return old, nil
	}
	var b *handle
	f, err := os.OpenFile(db.path+compactingSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		b, err = db.openBolt(f) // It locks the copy, so no other process can take it.
	}
	if err == nil {
		err = db.replace(ctx, old, b)
	}
	if err == nil {
		db.opts.Logger.Info("Compacted the cache file", "path", db.path, "before", m.Bytes, "used", used, "duration", time.Since(begin))
		_ = guard(old.Close)
		return b, nil
	}
	db.opts.Logger.Error(err, "Could not compact the cache file", "path", db.path)
	if db.opts.compact || isBad(err) {
		return old, err
	}
	return old, nil
}

// replace copies a file, makes the copy durable, and renames it. After an error the copy is closed.
func (db *DB) replace(ctx context.Context, old, b *handle) error {
	b.NoSync, b.NoGrowSync = true, true
	err := db.copy(ctx, old, b)
	b.NoSync, b.NoGrowSync = false, false
	if err == nil {
		err = db.firstCommit(b)
	}
	if err == nil {
		err = os.Rename(db.path+compactingSuffix, db.path)
	}
	if err != nil {
		_ = guard(b.Close)
	}
	return err
}

// copy copies the values as they are, with their checksums, in transactions of bounded size.
func (db *DB) copy(ctx context.Context, from, to *handle) error {
	l := newLayer()
	write := func() error {
		_, err := db.write(to, l, false)
		l = newLayer()
		return cmp.Or(err, ctx.Err())
	}
	return guard(func() error {
		return from.View(func(tx *bolt.Tx) error {
			names, err := bucketsIn(tx)
			for _, name := range names {
				l.bucket(name)
				err := fileBucket(tx, name).ForEach(func(k, v []byte) error {
					l.set(name, string(k[1:]), entry{sealed: slices.Clone(v)})
					if l.bytes < db.opts.MaxPendingBytes/2 {
						return nil
					}
					return write()
				})
				if err != nil {
					return err
				}
			}
			return cmp.Or(err, write())
		})
	})
}
