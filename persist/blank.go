package persist

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// isBlank reports whether a file has nothing in it: it is empty, or all zeros, or bbolt
// has begun it and nobody has committed to it. A process that crashes while it begins a
// file leaves it so.
func isBlank(f *os.File) bool {
	head := make([]byte, 2*maxPageBytes)
	n, err := readAt(f, head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	first := validMeta(head[:n])
	if first == nil {
		return n < len(head) && len(bytes.Trim(head[:n], "\x00")) == 0
	}
	second := validMeta(head[min(int(pageSizeOf(first)), n):n])
	return second != nil && txIDOf(first) <= 1 && txIDOf(second) <= 1 // bbolt begins with 0 and 1.
}

// beginBlank begins a cache file in f, which is blank and locked. It does not replace f,
// because a mount point cannot be renamed, and nothing is lost if this fails.
func (db *DB) beginBlank(f *os.File) (o opened, err error) {
	db.log.Info("There is nothing in the cache file, beginning it", "path", db.path)
	_ = f.Chmod(0o600)       // Like any new file. This fails if another user owns it.
	db.badFile, _ = f.Stat() // If this fails half-way, attach may replace what is left.
	if err = f.Truncate(0); err != nil {
		return opened{}, errors.Join(err, f.Close())
	}
	if o, err = openBolt(db.path, f, false, db.opts.LockTimeout); err == nil {
		err = db.fill(&o, nil, false)
	}
	if err != nil {
		if o.bolt != nil {
			_ = errors.Join(o.file.Truncate(0), guard(o.close)) // The next Open deals with what is left.
		}
		return opened{}, fmt.Errorf("begin %s: %w", db.path, err)
	}
	return o, nil
}
