package persist

import (
	"errors"
	"os"
	"syscall"
)

// initialMapBytes is also the length that bbolt gives the file on Windows. Both grow.
const initialMapBytes = 8 << 20

// openFile is os.OpenFile for a file that may be renamed while it is open.
func openFile(name string, flag int, mode os.FileMode) (*os.File, error) {
	if flag&(os.O_TRUNC|os.O_APPEND|os.O_EXCL) != 0 {
		return os.OpenFile(name, flag, mode)
	}
	path, err := syscall.UTF16PtrFromString(name)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	access := uint32(syscall.GENERIC_READ)
	if flag&os.O_RDWR != 0 {
		access |= syscall.GENERIC_WRITE
	}
	disposition := uint32(syscall.OPEN_EXISTING)
	if flag&os.O_CREATE != 0 {
		disposition = syscall.OPEN_ALWAYS
	}
	share := uint32(syscall.FILE_SHARE_READ | syscall.FILE_SHARE_WRITE | syscall.FILE_SHARE_DELETE)
	h, err := syscall.CreateFile(path, access, share, nil, disposition, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(h), name), nil
}

// isNoDirectorySync: FlushFileBuffers wants a handle that can be written to, which
// a directory's is not.
func isNoDirectorySync(err error) bool {
	const invalidHandle, invalidFunction = syscall.Errno(6), syscall.Errno(1)
	return errors.Is(err, invalidHandle) || errors.Is(err, invalidFunction)
}

// isUnreadable reports whether err means that the device has lost what was to be read.
func isUnreadable(err error) bool {
	const badCRC, noSector, readFault, badDevice = syscall.Errno(23), syscall.Errno(27), syscall.Errno(30), syscall.Errno(1117)
	return errors.Is(err, badCRC) || errors.Is(err, noSector) || errors.Is(err, readFault) || errors.Is(err, badDevice)
}

func isDiskFull(err error) bool {
	const handleDiskFull, diskFull = syscall.Errno(39), syscall.Errno(112)
	return errors.Is(err, handleDiskFull) || errors.Is(err, diskFull)
}
