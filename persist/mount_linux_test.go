package persist

import "syscall"

func mountTmpfs(dir, options string) (unmount func() error, err error) {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		return nil, err
	}
	return func() error { return syscall.Unmount(dir, syscall.MNT_DETACH) }, nil
}

func remountTmpfs(dir string, readOnly bool) error {
	flags := uintptr(syscall.MS_REMOUNT)
	if readOnly {
		flags |= syscall.MS_RDONLY
	}
	return syscall.Mount("tmpfs", dir, "tmpfs", flags, "")
}

// mountBind has the file to show what is in the file from.
func mountBind(from, to string) (unmount func() error, err error) {
	if err := syscall.Mount(from, to, "", syscall.MS_BIND, ""); err != nil {
		return nil, err
	}
	return func() error { return syscall.Unmount(to, syscall.MNT_DETACH) }, nil
}
