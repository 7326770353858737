package testsupport

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
)

// Where bbolt's meta pages, the first two, say how many pages are in use.
const (
	pageBytes       = 8 << 10 // As in package persist.
	metaAt          = 16
	metaBytes       = 64
	metaMagic       = 0xED0CDAED
	metaFreelistAt  = 32
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

// DamageFreelist damages a closed cache file so that nobody can write to it any more.
func DamageFreelist(t testing.TB, path string) {
	t.Helper()
	b := ReadUsed(t, path)
	for id := range 2 { // Of both meta pages: whichever is newer.
		freelist := binary.NativeEndian.Uint64(b[id*pageBytes+metaAt+metaFreelistAt:])
		b[freelist*pageBytes+8] = 0x77
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// CopyFile copies a sound cache file, as it is at one moment: a process may write to it. What was
// never written is a hole in the copy. It may be called by any goroutine.
func CopyFile(t testing.TB, from, to string) {
	t.Helper()
	info, err := os.Stat(from)
	if err != nil {
		t.Error(err)
		return
	}
	b, err := readUsed(from)
	if err == nil {
		err = errors.Join(os.WriteFile(to, b, 0o600), os.Truncate(to, max(info.Size(), int64(len(b)))))
	}
	if err != nil {
		t.Error(err)
	}
}

// readUsed reads a file again if it was committed to meanwhile.
func readUsed(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for {
		metas, err := readMetas(f)
		if err != nil {
			return nil, err
		}
		b := make([]byte, metas.used)
		if _, err := f.ReadAt(b, 0); err != nil {
			return nil, err
		}
		if now, err := readMetas(f); err != nil || now.pages == metas.pages {
			return b, err
		}
	}
}

// metas are the two meta pages of a file.
type metas struct {
	pages [2][metaBytes]byte
	used  int64 // How many bytes of the file are in use by either.
}

func readMetas(f *os.File) (m metas, err error) {
	info, err := f.Stat()
	if err != nil {
		return m, err
	}
	size, used := info.Size(), int64(0)
	for i := range m.pages {
		at, meta := int64(i)*pageBytes, m.pages[i][:]
		if at+pageBytes > size {
			break
		}
		if _, err := f.ReadAt(meta, at+metaAt); err != nil {
			return m, err
		}
		if binary.NativeEndian.Uint32(meta) == metaMagic {
			used = max(used, pageBytes*int64(binary.NativeEndian.Uint64(meta[metaHighWaterAt:])))
		}
	}
	if m.used = size; used > 0 {
		m.used = min(size, used)
	}
	return m, nil
}
