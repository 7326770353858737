package persist

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
)

// StartingSuffix is the suffix of the start marker, a file beside the cache file. The marker exists while bbolt opens
// the file. It has the number of processes in a row that have died meanwhile, or, after damage in use, foundDamaged.
const StartingSuffix = ".starting"

const (
	// maxStarts is how many processes may die over a file.
	maxStarts = 3
	// foundDamaged is in the marker after damage in use.
	foundDamaged = maxStarts + 1
)

// starts reads the start marker.
func (db *DB) starts() int {
	b, _ := os.ReadFile(db.path + StartingSuffix)
	n, _ := strconv.Atoi(string(b))
	return n
}

// markStart writes the start marker. If it cannot, the file is opened all the same.
func (db *DB) markStart(n int) {
	if err := os.WriteFile(db.path+StartingSuffix, []byte(strconv.Itoa(n)), 0o600); err != nil {
		db.opts.Logger.Error(err, "Could not write the start marker", "path", db.path)
	}
}

func (db *DB) unmarkStart() {
	if err := os.Remove(db.path + StartingSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		db.opts.Logger.Error(err, "Could not remove the start marker: after some more starts the cache file is set aside", "path", db.path)
	}
}

// checkStarts returns a [CorruptError] if too many processes have died.
func (db *DB) checkStarts() error {
	switch n := db.starts(); {
	case n >= foundDamaged:
		return &CorruptError{Err: errors.New("the last process has found it damaged")}
	case n == maxStarts:
		return &CorruptError{Err: fmt.Errorf("%d processes in a row have ended while they opened it", n)}
	}
	return nil
}

// crashpoint is called while bbolt opens a file. Tests let it end the process.
var crashpoint = func() {}
