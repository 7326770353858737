package persist

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

var fileSystemNames = map[uint32]string{
	unix.BTRFS_SUPER_MAGIC: "btrfs", unix.CEPH_SUPER_MAGIC: "ceph", unix.CIFS_SUPER_MAGIC: "cifs", unix.EXT4_SUPER_MAGIC: "ext4",
	unix.F2FS_SUPER_MAGIC: "f2fs", unix.FUSE_SUPER_MAGIC: "fuse", unix.NFS_SUPER_MAGIC: "nfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay",
	unix.RAMFS_MAGIC: "ramfs", unix.SMB2_SUPER_MAGIC: "smb", unix.TMPFS_MAGIC: "tmpfs", unix.V9FS_MAGIC: "9p", unix.XFS_SUPER_MAGIC: "xfs",
}

// fileSystem returns the type of the file system that a path is on, or will be, as keys and values for the log, and a hint
// if it may not outlive what the cache file is there to outlive.
func fileSystem(path string) []any {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	for errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path) {
		path = filepath.Dir(path)
		err = unix.Statfs(path, &st)
	}
	if err != nil {
		return nil
	}
	magic := uint32(st.Type)
	name := cmp.Or(fileSystemNames[magic], fmt.Sprintf("%#x", magic))
	switch name {
	case "overlay":
		return []any{"fileSystem", name, "hint", "a container's own file system does not outlive the container: mount a volume"}
	case "tmpfs", "ramfs":
		return []any{"fileSystem", name, "hint", "it is in memory: it does not outlive the Pod or the machine"}
	}
	return []any{"fileSystem", name}
}
