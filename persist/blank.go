package persist

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// isBlank reports whether a file has nothing in it: it is empty, or all zeros, or bbolt
// has begun it, perhaps in part, and nobody has committed to it. A process that crashes while
// it begins a file leaves it so.
func isBlank(f *os.File) bool {
	head := make([]byte, 2*maxPageBytes)
	n, err := readAt(f, head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	size := PageBytes
	if first := validMeta(head[:n]); first != nil {
		size = int(pageSizeOf(first))
		second := validMeta(head[min(size, n):n])
		if second != nil {
			return txIDOf(first) <= 1 && txIDOf(second) <= 1 // bbolt begins with 0 and 1.
		}
	}
	if n == len(head) {
		return false
	}
	// bbolt writes both meta pages, an empty freelist and an empty leaf at once. If the power is
	// cut then, any of them may be on the disk.
	for i := 0; i*size < n; i++ {
		page := head[i*size : min((i+1)*size, n)]
		if isZero(page) {
			continue
		}
		meta := validMeta(page)
		isMeta := i < 2 && meta != nil && txIDOf(meta) <= 1
		isEmpty := (i == 2 || i == 3) && len(page) > pageHeaderBytes && isZero(page[pageCountAt:])
		if !isMeta && !isEmpty {
			return false
		}
	}
	return true
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

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
		err = db.fill(&o, nil, nil)
	}
	if err != nil {
		if o.bolt != nil {
			_ = errors.Join(o.file.Truncate(0), guard(o.close)) // The next Open deals with what is left.
		}
		return opened{}, fmt.Errorf("begin %s: %w", db.path, err)
	}
	return o, nil
}
