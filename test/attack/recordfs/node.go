//go:build linux && (amd64 || arm64)

package recordfs

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// node passes everything on to the directory behind, and records it.
type node struct {
	*fs.LoopbackNode
	fs *FS
}

var (
	_ fs.NodeWrapChilder    = (*node)(nil)
	_ fs.NodeLookuper       = (*node)(nil)
	_ fs.NodeCreater        = (*node)(nil)
	_ fs.NodeMkdirer        = (*node)(nil)
	_ fs.NodeLinker         = (*node)(nil)
	_ fs.NodeRenamer        = (*node)(nil)
	_ fs.NodeUnlinker       = (*node)(nil)
	_ fs.NodeRmdirer        = (*node)(nil)
	_ fs.NodeOpener         = (*node)(nil)
	_ fs.NodeSetattrer      = (*node)(nil)
	_ fs.NodeOpendirHandler = (*node)(nil)
	_ fs.NodeFsyncer        = (*node)(nil)
)

// WrapChild implements [fs.NodeWrapChilder].
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	if l, ok := ops.(*fs.LoopbackNode); ok {
		return &node{LoopbackNode: l, fs: n.fs}
	}
	return ops
}

func (n *node) name() string {
	if n.IsRoot() {
		return "."
	}
	name, _ := n.Parent()
	return name
}

// Lookup implements [fs.NodeLookuper].
func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if n.IsRoot() && name == MarkFile {
		out.Mode = syscall.S_IFREG | 0o600
		return n.NewInode(ctx, &marks{fs: n.fs}, fs.StableAttr{Mode: syscall.S_IFREG, Ino: 1 << 62}), 0
	}
	return n.LoopbackNode.Lookup(ctx, name, out)
}

// Create implements [fs.NodeCreater].
func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (child *fs.Inode, fh fs.FileHandle, fuseFlags uint32, errno syscall.Errno) {
	errno = n.fs.do(Create, name, func() (Op, syscall.Errno) {
		var errno syscall.Errno
		child, fh, _, errno = n.LoopbackNode.Create(ctx, name, flags, mode, out)
		if errno != 0 {
			return Op{}, errno
		}
		return Op{File: n.fs.idLocked(child, true), Dir: n.fs.idLocked(n.EmbeddedInode(), false), Name: name}, 0
	})
	if errno != 0 {
		return nil, nil, 0, errno
	}
	return child, &file{node: child.Operations().(*node), under: fh.(*fs.LoopbackFile)}, fuse.FOPEN_DIRECT_IO, 0
}

// Mkdir implements [fs.NodeMkdirer].
func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (child *fs.Inode, errno syscall.Errno) {
	errno = n.fs.do(Mkdir, name, func() (Op, syscall.Errno) {
		var errno syscall.Errno
		if child, errno = n.LoopbackNode.Mkdir(ctx, name, mode, out); errno != 0 {
			return Op{}, errno
		}
		return Op{File: n.fs.idLocked(child, true), Dir: n.fs.idLocked(n.EmbeddedInode(), false), Name: name}, 0
	})
	return child, errno
}

// Link implements [fs.NodeLinker].
func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (child *fs.Inode, errno syscall.Errno) {
	errno = n.fs.do(Link, name, func() (Op, syscall.Errno) {
		var errno syscall.Errno
		if child, errno = n.LoopbackNode.Link(ctx, target, name, out); errno != 0 {
			return Op{}, errno
		}
		return Op{File: n.fs.idLocked(target.EmbeddedInode(), false), Dir: n.fs.idLocked(n.EmbeddedInode(), false), Name: name}, 0
	})
	return child, errno
}

// Rename implements [fs.NodeRenamer].
func (n *node) Rename(ctx context.Context, name string, newParent fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if flags != 0 {
		return syscall.EINVAL // An exchange would need an entry of its own in the log.
	}
	return n.fs.do(Rename, name, func() (Op, syscall.Errno) {
		moved := n.GetChild(name)
		if errno := n.LoopbackNode.Rename(ctx, name, newParent, newName, flags); errno != 0 {
			return Op{}, errno
		}
		return Op{
			File: n.fs.idLocked(moved, false), Dir: n.fs.idLocked(n.EmbeddedInode(), false), Name: name,
			ToDir: n.fs.idLocked(newParent.EmbeddedInode(), false), ToName: newName,
		}, 0
	})
}

// Unlink implements [fs.NodeUnlinker].
func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	return n.remove(Unlink, name, func() syscall.Errno { return n.LoopbackNode.Unlink(ctx, name) })
}

// Rmdir implements [fs.NodeRmdirer].
func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	return n.remove(Rmdir, name, func() syscall.Errno { return n.LoopbackNode.Rmdir(ctx, name) })
}

func (n *node) remove(k Kind, name string, remove func() syscall.Errno) syscall.Errno {
	return n.fs.do(k, name, func() (Op, syscall.Errno) {
		removed := n.GetChild(name)
		if errno := remove(); errno != 0 {
			return Op{}, errno
		}
		return Op{File: n.fs.idLocked(removed, false), Dir: n.fs.idLocked(n.EmbeddedInode(), false), Name: name}, 0
	})
}

// Open implements [fs.NodeOpener].
func (n *node) Open(ctx context.Context, flags uint32) (fh fs.FileHandle, fuseFlags uint32, errno syscall.Errno) {
	errno = n.fs.do(Open, n.name(), func() (Op, syscall.Errno) {
		var errno syscall.Errno
		fh, _, errno = n.LoopbackNode.Open(ctx, flags)
		if errno == 0 && flags&syscall.O_TRUNC != 0 { // The kernel truncates by Setattr.
			return Op{}, syscall.EINVAL
		}
		return Op{}, errno
	})
	if errno != 0 {
		return nil, 0, errno
	}
	return &file{node: n, under: fh.(*fs.LoopbackFile)}, fuse.FOPEN_DIRECT_IO, 0
}

// Setattr implements [fs.NodeSetattrer]. Of attributes only the size matters.
func (n *node) Setattr(ctx context.Context, fh fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	var under fs.FileHandle
	if f, ok := fh.(*file); ok {
		under = f.under
	}
	size, resized := in.GetSize()
	if !resized {
		return n.LoopbackNode.Setattr(ctx, under, in, out)
	}
	return n.fs.do(Truncate, n.name(), func() (Op, syscall.Errno) {
		errno := n.LoopbackNode.Setattr(ctx, under, in, out)
		return Op{File: n.fs.idLocked(n.EmbeddedInode(), false), Size: int64(size)}, errno
	})
}

// openDir is an open directory, without a Fsyncdir of its own.
type openDir struct {
	fs.FileReaddirenter
	fs.FileReleasedirer
	fs.FileSeekdirer
}

// OpendirHandle implements [fs.NodeOpendirHandler].
func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fh fs.FileHandle, fuseFlags uint32, errno syscall.Errno) {
	errno = n.fs.do(Open, n.name(), func() (Op, syscall.Errno) {
		under, _, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
		if errno == 0 {
			fh = openDir{under.(fs.FileReaddirenter), under.(fs.FileReleasedirer), under.(fs.FileSeekdirer)}
		}
		return Op{}, errno
	})
	return fh, 0, errno
}

// Fsync implements [fs.NodeFsyncer], for files and directories. The directory
// behind is not synced: its machine does not lose power.
func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	k := Fsync
	if n.IsDir() {
		k = FsyncDir
	}
	time.Sleep(n.fs.syncTime)
	return n.fs.do(k, n.name(), func() (Op, syscall.Errno) {
		return Op{File: n.fs.idLocked(n.EmbeddedInode(), false)}, 0
	})
}

// file is an open file. It is not passed through to the kernel: every write has
// to come by.
type file struct {
	node  *node
	under *fs.LoopbackFile
}

var (
	_ fs.FileReader    = (*file)(nil)
	_ fs.FileWriter    = (*file)(nil)
	_ fs.FileReleaser  = (*file)(nil)
	_ fs.FileGetattrer = (*file)(nil)
	_ fs.FileLseeker   = (*file)(nil)
)

// Read implements [fs.FileReader].
func (f *file) Read(ctx context.Context, buf []byte, off int64) (res fuse.ReadResult, errno syscall.Errno) {
	errno = f.node.fs.do(Read, f.node.name(), func() (Op, syscall.Errno) {
		var errno syscall.Errno
		res, errno = f.under.Read(ctx, buf, off)
		return Op{}, errno
	})
	return res, errno
}

// Write implements [fs.FileWriter].
func (f *file) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	written, errno := f.write(ctx, data, off)
	// Writes go past the kernel's cache, so that one which fails is not seen in it.
	// What it has read meanwhile is old.
	if e := f.node.NotifyContent(off, int64(len(data))); e != 0 && e != syscall.ENOENT {
		return 0, e
	}
	return written, errno
}

func (f *file) write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	s := f.node.fs
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.begin(Write, fmt.Sprintf("%s @%d+%d", f.node.name(), off, len(data)))
	if v.Errno != 0 {
		if !v.Part || len(data) < 2 {
			return 0, v.Errno
		}
		data = data[:len(data)/2]
	}
	n, errno := f.under.Write(ctx, data, off)
	if errno == 0 {
		s.log = append(s.log, Op{Kind: Write, File: s.idLocked(f.node.EmbeddedInode(), false), Offset: off, Data: append([]byte(nil), data[:n]...)})
	}
	if v.Dead {
		return 0, v.Errno
	}
	return n, errno
}

// Getattr implements [fs.FileGetattrer].
func (f *file) Getattr(ctx context.Context, out *fuse.AttrOut) syscall.Errno {
	return f.under.Getattr(ctx, out)
}

// Lseek implements [fs.FileLseeker].
func (f *file) Lseek(ctx context.Context, off uint64, whence uint32) (uint64, syscall.Errno) {
	return f.under.Lseek(ctx, off, whence)
}

// Release implements [fs.FileReleaser].
func (f *file) Release(ctx context.Context) syscall.Errno { return f.under.Release(ctx) }

// marks is the file that programs write marks to.
type marks struct {
	fs.Inode
	fs *FS
}

var (
	_ fs.NodeOpener    = (*marks)(nil)
	_ fs.NodeWriter    = (*marks)(nil)
	_ fs.NodeSetattrer = (*marks)(nil)
	_ fs.NodeGetattrer = (*marks)(nil)
)

// Open implements [fs.NodeOpener].
func (m *marks) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

// Setattr implements [fs.NodeSetattrer]: the file is always empty.
func (m *marks) Setattr(context.Context, fs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return 0
}

// Getattr implements [fs.NodeGetattrer].
func (m *marks) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = syscall.S_IFREG | 0o600
	return 0
}

// Write implements [fs.NodeWriter].
func (m *marks) Write(_ context.Context, _ fs.FileHandle, data []byte, _ int64) (uint32, syscall.Errno) {
	m.fs.mu.Lock()
	defer m.fs.mu.Unlock()
	if m.fs.dead {
		return 0, syscall.EIO
	}
	m.fs.log = append(m.fs.log, Op{Kind: Mark, Data: append([]byte(nil), data...)})
	return uint32(len(data)), 0
}
