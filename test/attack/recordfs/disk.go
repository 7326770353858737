//go:build linux && (amd64 || arm64)

package recordfs

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// sectorBytes are written as a whole, or not at all.
const sectorBytes = 512

// A Disk follows a log, and knows what is safe: what was written to a file before
// its last fsync, and the entries of a directory as of the directory's. All else
// may be on the disk or not when the power fails.
type Disk struct {
	files  map[uint64]*diskFile
	dirs   map[uint64]map[string]uint64 // What is safe.
	unsafe []Op                         // Changes of directories that were not synced since, in order.
}

type diskFile struct {
	content []byte // As of the last fsync.
	since   []Op   // Writes and truncations after that.
}

// NewDisk returns one that has a root directory only.
func NewDisk() *Disk {
	return &Disk{files: map[uint64]*diskFile{}, dirs: map[uint64]map[string]uint64{RootID: {}}}
}

// Apply goes on with the log.
func (d *Disk) Apply(ops ...Op) {
	for _, o := range ops {
		switch o.Kind {
		case Create:
			d.files[o.File] = &diskFile{}
			d.unsafe = append(d.unsafe, o)
		case Mkdir:
			d.dirs[o.File] = map[string]uint64{}
			d.unsafe = append(d.unsafe, o)
		case Link, Rename, Unlink, Rmdir:
			d.unsafe = append(d.unsafe, o)
		case Write, Truncate:
			f := d.files[o.File]
			f.since = append(f.since, o)
		case Fsync:
			f := d.files[o.File]
			for _, o := range f.since {
				f.content = applied(f.content, o)
			}
			f.since = nil
		case FsyncDir:
			d.unsafe = slices.DeleteFunc(d.unsafe, func(c Op) bool {
				of := c.Dir == o.File || c.ToDir == o.File
				if of {
					change(d.dirs, c)
				}
				return of
			})
		}
	}
}

func applied(content []byte, o Op) []byte {
	if o.Kind == Truncate {
		return resized(content, o.Size)
	}
	if end := o.Offset + int64(len(o.Data)); end > int64(len(content)) {
		content = resized(content, end)
	}
	copy(content[o.Offset:], o.Data)
	return content
}

func resized(content []byte, size int64) []byte {
	if size <= int64(len(content)) {
		clear(content[size:]) // It may grow again.
		return content[:size]
	}
	return append(content, make([]byte, size-int64(len(content)))...)
}

// change makes the change of a directory. It does not depend on those before it:
// they may be lost.
func change(dirs map[uint64]map[string]uint64, o Op) {
	from := dirs[o.Dir]
	switch o.Kind {
	case Create, Mkdir, Link:
		from[o.Name] = o.File
		return
	case Rename:
		dirs[o.ToDir][o.ToName] = o.File
	}
	if from[o.Name] == o.File {
		delete(from, o.Name)
	}
}

// A loss says what of the changes that are not safe gets lost. The first four are
// what file systems usually do, the last is all that they may.
type loss int

const (
	nothing loss = iota
	everything
	tail     // What came behind some moment; the change then is torn.
	some     // Any changes, torn or not.
	anything // Any sectors.
	losses
)

// GiveUp is what Linux does when it has failed to write: what was not synced stays in its
// cache, counts as written from now on, and is not on the disk.
func (d *Disk) GiveUp() {
	for _, f := range d.files {
		f.since = nil
	}
}

// Cut writes to dir what the disk may hold if the power fails now, and returns
// how it was chosen.
func (d *Disk) Cut(rng *rand.Rand, dir string) (how string, err error) {
	entries := loss(rng.IntN(int(losses)))
	data := loss(rng.IntN(int(losses)))
	dirs := make(map[uint64]map[string]uint64, len(d.dirs))
	for id, names := range d.dirs {
		dirs[id] = maps.Clone(names)
	}
	kept := entries.keep(rng, len(d.unsafe))
	for i, o := range d.unsafe {
		if kept[i] {
			change(dirs, o)
		}
	}
	how = "entries: " + entries.String() + ", data: " + data.String()
	return how, d.write(rng, data, dirs, RootID, dir)
}

func (l loss) String() string {
	return [...]string{"nothing lost", "everything lost", "the tail lost", "some lost", "any lost"}[l]
}

// keep chooses which of n changes stay.
func (l loss) keep(rng *rand.Rand, n int) []bool {
	kept := make([]bool, n)
	until := rng.IntN(n + 1)
	for i := range kept {
		switch l {
		case nothing:
			kept[i] = true
		case tail:
			kept[i] = i < until
		case some, anything:
			kept[i] = rng.IntN(2) == 0
		}
	}
	return kept
}

// write writes a directory and what is in it. In the order of names, so that a
// seed means the same each time.
func (d *Disk) write(rng *rand.Rand, l loss, dirs map[uint64]map[string]uint64, id uint64, to string) error {
	for _, name := range slices.Sorted(maps.Keys(dirs[id])) {
		child, path := dirs[id][name], filepath.Join(to, name)
		var err error
		if f := d.files[child]; f != nil {
			err = writeSparse(path, f.cut(rng, l))
		} else if err = os.Mkdir(path, 0o700); err == nil {
			err = d.write(rng, l, dirs, child, path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cut chooses what a file holds.
func (f *diskFile) cut(rng *rand.Rand, l loss) []byte {
	content := slices.Clone(f.content)
	if len(f.since) == 0 {
		return content
	}
	// The size is one that the file has had since, and not that of the data: it
	// may be the old one, or the new one before the data are there.
	sizes := []int64{int64(len(content))}
	kept := l.keep(rng, len(f.since))
	until := slices.Index(kept, false)
	for i, o := range f.since {
		sizes = append(sizes, max(sizes[i], o.Offset+int64(len(o.Data))))
		if o.Kind == Truncate {
			sizes[i+1] = o.Size
		}
		switch {
		case o.Kind == Truncate:
			if kept[i] {
				content = applied(content, o)
			}
		case l == anything, l == some && rng.IntN(3) == 0, l == tail && i == until:
			for _, sector := range sectors(o) {
				if rng.IntN(2) == 0 {
					content = applied(content, sector)
				}
			}
		case kept[i]:
			content = applied(content, o)
		}
	}
	switch l {
	case nothing:
		return resized(content, sizes[len(sizes)-1])
	default:
		return resized(content, sizes[rng.IntN(len(sizes))])
	}
}

// sectors divides a write.
func sectors(o Op) []Op {
	var parts []Op
	for from := int64(0); from < int64(len(o.Data)); {
		at := o.Offset + from
		to := min(int64(len(o.Data)), from+sectorBytes-at%sectorBytes)
		parts = append(parts, Op{Kind: Write, File: o.File, Offset: at, Data: o.Data[from:to]})
		from = to
	}
	return parts
}

// writeSparse writes a file, of which much is often zero.
func writeSparse(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	const block = 16 << 10
	zero := make([]byte, block)
	for at := 0; at < len(content) && err == nil; at += block {
		part := content[at:min(at+block, len(content))]
		if !slices.Equal(part, zero[:len(part)]) {
			_, err = f.WriteAt(part, int64(at))
		}
	}
	err = cmp.Or(err, f.Truncate(int64(len(content))))
	return cmp.Or(err, f.Close())
}
