package persist

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// maxLinks is how many symbolic links one path may go through, as on Linux.
const maxLinks = 40

// resolve follows the symbolic links at path, also to a file that is not there yet: files
// are then made, renamed and removed beside the file itself, and the link stays. It returns
// an absolute path, because the process may change its directory.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for at, links := path, 0; ; links++ {
		to, err := os.Readlink(at)
		switch {
		case err != nil: // It is no link, or nothing is there. Opening it will return other errors.
			return at, nil //nolint:nilerr // As the comment says.
		case links == maxLinks:
			return "", &os.PathError{Op: "open", Path: path, Err: errors.New("too many symbolic links")}
		case filepath.IsAbs(to):
			at = to
		default:
			at = filepath.Join(filepath.Dir(at), to)
		}
	}
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

// checkName returns an error if path does not name the open file f any more: the next
// process would not find what is written to f.
func checkName(f *os.File, path string) error {
	open, err := f.Stat()
	if err != nil {
		return nil //nolint:nilerr // Writing to it will return the error.
	}
	there, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("persist: %s was removed, or renamed, while it was in use", path)
	case err == nil && !os.SameFile(open, there):
		return fmt.Errorf("persist: %s was replaced by another file while it was in use", path)
	}
	return nil
}

// makeDir makes a directory, and its parents. It syncs the name of each before it makes
// anything in it, also of one that is there already: the process that made that may have
// been killed before it synced the name.
func (db *DB) makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if parent == dir {
		return fmt.Errorf("there is no directory %s", dir)
	}
	if err := db.makeDir(parent); err != nil {
		return err
	}
	if err := syncParent(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// syncName has the names in dir, and the name of dir, survive a power failure.
func (db *DB) syncName(dir string) error {
	if err := db.syncDir(dir); err != nil {
		return err
	}
	return syncParent(dir)
}

// syncParent has the name of a directory survive a power failure. It ignores a parent that
// cannot be synced: this process may not read one that it has not made.
func syncParent(dir string) error {
	if err := syncDirectory(filepath.Dir(dir)); err != nil && !cannotSync(err) {
		return err
	}
	return nil
}

// syncDir has the names in a directory survive a power failure. Where the system
// cannot do that, syncDir logs it once.
func (db *DB) syncDir(dir string) error {
	err := syncDirectory(dir)
	if err == nil || !cannotSync(err) {
		return err
	}
	db.logUnsynced.Do(func() {
		db.log.Info("Could not sync a directory: after a power failure, a file that was just begun may be missing", "dir", dir, "err", err)
	})
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

// cannotSync reports whether err says that directories cannot be synced, or not by
// this process, and not that the disk has failed.
func cannotSync(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || // ENOTSUP, EOPNOTSUPP, ENOSYS
		errors.Is(err, fs.ErrPermission) || // EPERM, EACCES, and Windows' access denied
		errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EBADF) || errors.Is(err, syscall.EISDIR) ||
		isNoDirectorySync(err)
}

// publish gives the file at from the name to. Where the file system has links, the file
// keeps its old name as well, which the caller removes once the new one is sure to survive
// a power failure. If another file has the new name already, publish returns fs.ErrExist;
// only without links, it replaces a file that comes in the last moment.
func publish(from, to string) error {
	err := link(from, to)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	if _, err := os.Lstat(to); err == nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: fs.ErrExist}
	}
	return os.Rename(from, to)
}

// link is replaced in tests.
var link = os.Link
