package persist

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// isBlank reports whether a file has nothing in it: it is empty, or all zeros, or bbolt
// has begun it and nobody has committed to it. Processes leave that which crash while
// they begin it.
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
	return second != nil && txIDOf(first) <= 1 && txIDOf(second) <= 1 // bbolt's own.
}

// beginBlank begins a file in the one that is there, has nothing in it and is locked.
// Nothing is lost if that fails, and a file that is a mount point cannot be renamed.
func (db *DB) beginBlank(f *os.File) (o opened, err error) {
	db.log.Info("There is nothing in the cache file, beginning it", "path", db.path)
	_ = f.Chmod(0o600)       // As any file that is begun, unless it is somebody else's.
	db.badFile, _ = f.Stat() // If bbolt does not come to its end, there is something in it.
	if err = f.Truncate(0); err != nil {
		return opened{}, errors.Join(err, f.Close())
	}
	if o, err = openBolt(db.path, f, false, db.opts.LockTimeout); err == nil {
		err = db.fill(&o, nil, false)
	}
	if err != nil {
		if o.bolt != nil {
			_ = errors.Join(o.file.Truncate(0), guard(o.close)) // What is left, the next Open looks at.
		}
		return opened{}, fmt.Errorf("begin %s: %w", db.path, err)
	}
	return o, nil
}
