//go:build linux && (amd64 || arm64)

// Package recordfs is a file system that remembers what was done to it, fails
// where it is told to, and so can show what a crash, an error or a power cut at
// any moment would have left.
//
//	program ──► kernel (FUSE, page cache, mmap) ──► FS ──► a directory
//	                                                 │
//	                                                 └──► log: every change, every fsync, in order
//
// The program must be another process: a page fault in a file that this process
// serves to itself could wait for a goroutine that the garbage collector has
// stopped.
package recordfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// A Kind is what an operation does.
type Kind string

// The operations. Open and Read change nothing: they are never in the log, but
// can fail.
const (
	Create   Kind = "create"
	Mkdir    Kind = "mkdir"
	Link     Kind = "link"
	Rename   Kind = "rename"
	Unlink   Kind = "unlink"
	Rmdir    Kind = "rmdir"
	Write    Kind = "write"
	Truncate Kind = "truncate" // Also grows.
	Fsync    Kind = "fsync"
	FsyncDir Kind = "fsyncdir"
	Open     Kind = "open"
	Read     Kind = "read"

	// Mark is no operation but what the program wrote to the file [MarkFile].
	Mark Kind = "mark"
)

// TakesSpace reports whether a full disk refuses the operation.
func (k Kind) TakesSpace() bool {
	return slices.Contains([]Kind{Create, Mkdir, Link, Rename, Write, Truncate}, k)
}

// MarkFile is a file in the root that exists always. Each write to it, of at most
// 64 KiB, is one entry of the log, in order with the operations: what a program
// says there, it said before the next operation.
const MarkFile = ".marks"

// An Op is an entry of the log: an operation that has succeeded.
type Op struct {
	Kind Kind
	// File is what was created, written, synced or got another name. Numbers
	// are not used again. That of the root is RootID.
	File uint64
	// Dir and Name are the entry that was made or removed, or renamed.
	Dir  uint64
	Name string
	// ToDir and ToName are what a Rename has made of it.
	ToDir  uint64
	ToName string
	// Offset and Data of a Write. Data of a Mark.
	Offset int64
	Data   []byte
	// Size after a Truncate.
	Size int64
}

func (o Op) String() string {
	switch o.Kind {
	case Write:
		return fmt.Sprintf("write %d @%d+%d", o.File, o.Offset, len(o.Data))
	case Truncate:
		return fmt.Sprintf("truncate %d to %d", o.File, o.Size)
	case Rename:
		return fmt.Sprintf("rename %d %s to %s", o.File, o.Name, o.ToName)
	case Mark:
		return "mark " + string(o.Data)
	default:
		return fmt.Sprintf("%s %d %s", o.Kind, o.File, o.Name)
	}
}

// RootID is the number of the root directory.
const RootID = 1

// A Verdict says what becomes of an operation.
type Verdict struct {
	// Errno, if not zero, fails the operation.
	Errno syscall.Errno
	// Part of a Write, its first half, is written before it fails: with an Errno
	// this one is reported as short, so that the caller tries the rest, with
	// Dead it is what a killed process leaves.
	Part bool
	// Dead fails this operation, and everything after it, without effect.
	Dead bool
}

// A Judge is asked before each operation: n counts from 1, what is the name of the
// file or directory, and the place of a write. It must not touch the file system.
type Judge func(n int, k Kind, what string) Verdict

// FS is a mounted file system. All methods are safe for concurrent use.
type FS struct {
	// Dir is where it is mounted, Backing the directory with the same content,
	// to be looked at without the operations being seen.
	Dir, Backing string

	server   *fuse.Server
	judge    Judge
	syncTime time.Duration

	mu   sync.Mutex // Held through each operation, so that the log has their order.
	log  []Op
	met  int
	dead bool
	ids  map[fs.StableAttr]uint64
	last uint64
}

// Mount mounts a file system at dir over the empty directory backing. judge may be
// nil. An fsync takes syncTime, as it does on a disk: others go on meanwhile.
func Mount(dir, backing string, syncTime time.Duration, judge Judge) (*FS, error) {
	loopback, err := fs.NewLoopbackRoot(backing)
	if err != nil {
		return nil, err
	}
	f := &FS{Dir: dir, Backing: backing, judge: judge, syncTime: syncTime, ids: map[fs.StableAttr]uint64{}, last: RootID}
	root := &node{LoopbackNode: loopback.(*fs.LoopbackNode), fs: f}
	root.RootData.RootNode = root
	zero := time.Duration(0)
	f.server, err = fs.Mount(dir, root, &fs.Options{
		EntryTimeout: &zero, AttrTimeout: &zero, NegativeTimeout: &zero,
		MountOptions: fuse.MountOptions{FsName: "recordfs", Name: "recordfs", DirectMountStrict: true, DisableXAttrs: true, ExplicitDataCacheControl: true, ExtraCapabilities: fuse.CAP_DIRECT_IO_ALLOW_MMAP},
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Available says why no file system can be mounted here, or returns nil.
func Available() error { return available() }

var available = sync.OnceValue(func() error {
	if os.Getuid() != 0 {
		return fmt.Errorf("mounting a FUSE file system needs root, this is user %d", os.Getuid())
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return fmt.Errorf("FUSE is missing: %w", err)
	}
	dir, err := os.MkdirTemp("", "recordfs")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	mounted, backing := filepath.Join(dir, "mounted"), filepath.Join(dir, "backing")
	if err := errors.Join(os.Mkdir(mounted, 0o700), os.Mkdir(backing, 0o700)); err != nil {
		return err
	}
	f, err := Mount(mounted, backing, 0, nil)
	if err != nil {
		return fmt.Errorf("a FUSE file system cannot be mounted: %w", err)
	}
	maps := f.server.KernelSettings().Flags64()&fuse.CAP_DIRECT_IO_ALLOW_MMAP != 0
	if err := f.Unmount(); err != nil {
		return err
	}
	if !maps {
		return errors.New("the kernel cannot map files that are written past its cache; Linux 6.6 can")
	}
	return nil
})

// Unmount ends it, after the processes that use it have ended.
func (f *FS) Unmount() error {
	if err := f.server.Unmount(); err != nil {
		return err
	}
	f.server.Wait()
	return nil
}

// Log returns what was done so far.
func (f *FS) Log() []Op {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

// Met is the number of operations that judge was asked about.
func (f *FS) Met() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.met
}

// Revive ends what a Verdict with Dead began, and sets who judges from now on,
// counting from 1 again.
func (f *FS) Revive(judge Judge) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead, f.met, f.judge = false, 0, judge
}

// begin asks what becomes of an operation, under mu.
func (f *FS) begin(k Kind, name string) Verdict {
	if f.dead {
		return Verdict{Errno: syscall.EIO}
	}
	f.met++
	if f.judge == nil {
		return Verdict{}
	}
	v := f.judge(f.met, k, name)
	if v.Dead {
		f.dead = true
		v.Errno = syscall.EIO
	}
	return v
}

// do makes an operation that succeeds or fails as a whole.
func (f *FS) do(k Kind, name string, op func() (Op, syscall.Errno)) syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.begin(k, name); v.Errno != 0 {
		return v.Errno
	}
	o, errno := op()
	if errno == 0 && k != Open && k != Read {
		o.Kind = k
		f.log = append(f.log, o)
	}
	return errno
}

func (f *FS) idLocked(n *fs.Inode, made bool) uint64 {
	if n.IsRoot() {
		return RootID
	}
	a := n.StableAttr()
	id, known := f.ids[a]
	if made || !known {
		f.last++
		id = f.last
		f.ids[a] = id
	}
	return id
}
