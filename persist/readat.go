package persist

import (
	"errors"
	"io"
	"os"
	"time"
)

// A pagedFile is what an inspector reads: an [os.File], except in tests.
type pagedFile interface {
	io.ReaderAt
	Stat() (os.FileInfo, error)
}

// readAt reads once more where the first read fails, because a card or a cable may fail
// only once. What the device cannot read then is damaged: the error is a [CorruptError].
func readAt(f io.ReaderAt, b []byte, at int64) (int, error) {
	n, err := readFile(f, b, at)
	if hasFailed(err) {
		n, err = readFile(f, b, at)
	}
	if isUnreadable(err) {
		err = &CorruptError{Err: err}
	}
	return n, err
}

// hasFailed reports whether err is worth another read.
func hasFailed(err error) bool {
	return err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed)
}

// readFile is replaced in tests.
var readFile = io.ReaderAt.ReadAt

// noting returns a file whose readers note that the disk answers, see DB.answeredAt.
func (db *DB) noting(f pagedFile) pagedFile { return notingFile{f, db} }

type notingFile struct {
	pagedFile
	db *DB
}

func (f notingFile) ReadAt(b []byte, at int64) (int, error) {
	n, err := f.pagedFile.ReadAt(b, at)
	f.db.answered() // An error is an answer, too.
	return n, err
}

// readAgainDelay is the pause before the one late retry where a device could not open or
// read the file. What it cannot read then is lost.
const readAgainDelay = time.Second

// readAt is the function readAt, but tries once more after a pause. It pauses once only.
func (in *inspector) readAt(b []byte, at int64) (int, error) {
	n, err := readAt(in.f, b, at)
	if hasFailed(err) && !in.waited {
		in.waited = true
		time.Sleep(readAgainDelay)
		n, err = readAt(in.f, b, at)
	}
	return n, err
}
