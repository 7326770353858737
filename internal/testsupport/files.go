package testsupport

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"
)

// Where bbolt's meta pages, the first two, say how many pages are in use.
const (
	pageBytes       = 8 << 10 // As in package persist.
	metaAt          = 16
	metaBytes       = 64
	metaMagic       = 0xED0CDAED
	metaHighWaterAt = 40
)

// ReadUsed reads the pages of a sound cache file that have been in use. Behind them a file
// has up to 4 MiB that were never written, which would take most of a test's time.
func ReadUsed(t testing.TB, path string) []byte {
	t.Helper()
	b, err := readUsed(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// CopyFile copies a sound cache file. What was never written is a hole in the copy. It may
// be called by any goroutine.
func CopyFile(t testing.TB, from, to string) {
	t.Helper()
	info, err := os.Stat(from)
	if err != nil {
		t.Error(err)
		return
	}
	b, err := readUsed(from)
	if err == nil {
		err = errors.Join(os.WriteFile(to, b, 0o600), os.Truncate(to, info.Size()))
	}
	if err != nil {
		t.Error(err)
	}
}

func readUsed(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size, used := info.Size(), int64(0)
	for at := int64(0); at <= pageBytes && at+pageBytes <= size; at += pageBytes {
		var meta [metaBytes]byte
		if _, err := f.ReadAt(meta[:], at+metaAt); err != nil {
			return nil, err
		}
		if binary.NativeEndian.Uint32(meta[:]) == metaMagic {
			used = max(used, pageBytes*int64(binary.NativeEndian.Uint64(meta[metaHighWaterAt:])))
		}
	}
	if used > 0 {
		size = min(size, used)
	}
	b := make([]byte, size)
	_, err = io.ReadFull(f, b)
	return b, err
}
