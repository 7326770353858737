package persist

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// maxLinks is how many symbolic links one path may go through, as on Linux.
const maxLinks = 40

// resolve follows the symbolic links at path, also to a file that is not there yet. Files are made, renamed and removed
// beside the file itself, and the link stays. The result is an absolute path, because the process may change its
// directory.
func resolve(path string) (string, error) {
	at, err := filepath.Abs(path)
	for range maxLinks {
		to, linkErr := os.Readlink(at)
		if err != nil || linkErr != nil { // at is no link, or nothing is there. Opening it will return other errors.
			return at, err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(at), to)
		}
		at = to
	}
	return "", &os.PathError{Op: "open", Path: path, Err: errors.New("too many symbolic links")}
}

// isAt reports whether path names the open file f.
func isAt(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(open, there)
}

// removeSetAside removes the files that were set aside, and reports whether there was any. If the directory cannot be
// read, it finds none.
func (db *DB) removeSetAside() (some bool) {
	dir, base := filepath.Split(db.path)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		rest, found := strings.CutPrefix(e.Name(), base+corruptSuffix)
		if !found || strings.Trim(rest, "0123456789T.") != "" || !e.Type().IsRegular() {
			continue
		}
		some = true
		if err := os.Remove(dir + e.Name()); err != nil {
			db.opts.Logger.Error(err, "Could not remove an old file", "path", dir+e.Name())
		}
	}
	return some
}

// makeDir makes a directory and its parents, and makes their names durable.
func makeDir(dir string) error {
	parent := filepath.Dir(dir)
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err = makeDir(parent); err == nil {
			err = os.Mkdir(dir, 0o700)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return cmp.Or(err, syncDir(parent))
}

// syncDir makes the names in a directory durable, if the system and the permissions of this process allow that.
func syncDir(dir string) error {
	if err := syncDirectory(dir); err != nil && !cannotSync(err) {
		return err
	}
	return nil
}

// syncDirectory is replaced in tests.
var syncDirectory = func(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// cannotSync reports whether err says that this system or this process cannot sync directories. The disk has not failed
// then.
func cannotSync(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || // ENOTSUP, EOPNOTSUPP, ENOSYS
		errors.Is(err, fs.ErrPermission) || // EPERM, EACCES, and Windows' access denied
		errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EBADF) || errors.Is(err, syscall.EISDIR) ||
		runtime.GOOS == "windows" // FlushFileBuffers wants a handle that can be written to. A directory's cannot.
}
