package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/reflector"
)

// The spaces of a file that are not an informer's.
const (
	workqueuesSpace = "workqueues" // Of Cache.Workqueues.
	timelineSpace   = "timeline"
	timelineBucket  = "events" // An event, by number.
	unusedSpace     = "unused"
	unusedBucket    = "since" // The time since which an informer's data are unused, by space.
)

// A file is an open cache file.
type file struct {
	*persist.DB
	path      string // As given, also if a copy is read.
	informers []*informer
	findings  []finding
}

// A finding is something that is wrong with the file.
type finding struct {
	Informer string `json:"informer,omitempty"`
	Bucket   string `json:"bucket,omitempty"`
	Key      string `json:"key,omitempty"`
	Message  string `json:"message"`
}

// An informer is an informer in the file, or the space of the Cache's workqueues.
type informer struct {
	name    string // Its identity, or the space if the checkpoint has none.
	space   string
	buckets []string
	index   *indexer.Indexer   // Nil if it cannot be read.
	record  *checkpoint.Record // Nil if there is none, or it cannot be read.
	unused  time.Time          // As in Status; zero if the last process used it.
}

func (i *informer) identity() checkpoint.Identity {
	if i.record == nil {
		return checkpoint.Identity{}
	}
	return i.record.Identity
}

func (i *informer) bucket(name string) persist.Bucket {
	return persist.Bucket{Space: i.space, Name: name}
}

// silent is a logger for the library. The command itself says what is wrong.
var silent klog.Logger

// read opens a file for fn without writing to it.
func (r *reader) read(ctx context.Context, path string, fn func(*file) error) (err error) {
	from := path
	if r.copyTo != "" {
		dir, err := os.MkdirTemp(r.copyTo, "warmwatch-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		from = filepath.Join(dir, "copy.db")
		if err := persist.CopyFile(ctx, path, from); err != nil {
			return err
		}
	}
	db, err := persist.OpenReadOnly(from)
	if errors.Is(err, persist.ErrLocked) {
		err = fmt.Errorf("%w; end that process, or add --copy to a verb that only reads", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if from != path { // Before anything is printed: a closed pipe may end the process.
		_ = os.RemoveAll(filepath.Dir(from))
	}
	f, err := newFile(db, path)
	if err != nil {
		return err
	}
	return fn(f)
}

// newFile finds the informers of a file.
func newFile(db *persist.DB, path string) (*file, error) {
	f := &file{DB: db, path: path}
	buckets, err := db.Buckets()
	if err != nil {
		return nil, err
	}
	for _, b := range buckets { // Sorted by space.
		if b.Space == timelineSpace || b.Space == unusedSpace || b.Space == reflector.BookmarksBucket.Space || f.isEmpty(b) {
			continue
		}
		if n := len(f.informers); n == 0 || f.informers[n-1].space != b.Space {
			f.informers = append(f.informers, &informer{name: b.Space, space: b.Space})
		}
		last := f.informers[len(f.informers)-1]
		last.buckets = append(last.buckets, b.Name)
	}
	for _, i := range f.informers {
		if i.space != workqueuesSpace {
			f.load(i)
		}
	}
	slices.SortFunc(f.informers, func(a, b *informer) int { return cmp.Compare(a.name, b.name) })
	return f, nil
}

func (f *file) isEmpty(b persist.Bucket) bool {
	empty := true
	_ = f.scan(b, func(*persist.Item) error { empty = false; return errStop }) // A later scan has the error, too.
	return empty
}

// errStop ends a scan.
var errStop = errors.New("stop")

// scan calls fn with each item of a bucket, until fn returns an error.
func (f *file) scan(b persist.Bucket, fn func(*persist.Item) error) error {
	err := f.Read(b.Space, func(s *persist.Snapshot) error {
		return s.Scan(b.Name, "", func(it *persist.Item) (bool, error) {
			err := fn(it)
			return err == nil, err
		})
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// load reads the state and the checkpoint of an informer. What cannot be read is a finding.
func (f *file) load(i *informer) {
	index, indexErr := indexer.New(indexer.Options{DB: f.DB, Space: i.space, OnCorrupt: func(err error) { f.note(i, err) }, Logger: &silent})
	if indexErr == nil {
		i.index, indexErr = index, index.IndexErr()
	}
	if err := f.loadCheckpoint(i); err != nil {
		f.note(i, err)
	}
	if indexErr != nil { // Noted now that the name is known.
		f.note(i, indexErr)
	}
	_, err := f.View(persist.Bucket{Space: unusedSpace, Name: unusedBucket}, i.space, func(it *persist.Item) (err error) {
		i.unused, err = persist.ReadJSON[time.Time](it)
		return err
	})
	if err != nil {
		f.note(i, err)
	}
}

func (f *file) loadCheckpoint(i *informer) error {
	version := ""
	if i.index != nil {
		version = i.index.LastStoreSyncResourceVersion()
	}
	_, err := f.View(i.bucket(reflector.CheckpointBucket), reflector.CheckpointKey, func(it *persist.Item) error {
		payload, err := it.Payload()
		if err != nil {
			return err
		}
		record, err := checkpoint.Parse(payload, version)
		if err == nil {
			i.record = &record
		}
		return err
	})
	if err != nil || i.record == nil {
		return err
	}
	if i.record.Identity != (checkpoint.Identity{}) {
		i.name = i.record.Identity.String()
	}
	_, err = f.View(reflector.BookmarksBucket, i.space, func(it *persist.Item) error {
		last, err := persist.ReadJSON[reflector.LastBookmark](it)
		if order, ok := checkpoint.CompareVersions(last.ResourceVersion, i.record.ResourceVersion); ok && order > 0 {
			i.record.ResourceVersion, i.record.VouchedAt = last.ResourceVersion, last.VouchedAt
		}
		return err
	})
	return err
}

// note adds an error of an informer to the findings.
func (f *file) note(i *informer, err error) {
	found := finding{Informer: i.name, Message: err.Error()}
	if damage, ok := errors.AsType[*persist.CorruptError](err); ok && damage.Bucket.Name != "" {
		found.Bucket, found.Key, found.Message = damage.Bucket.Name, keyOf(damage.Bucket, damage.Key), damage.Err.Error()
	}
	f.findings = append(f.findings, found)
}

// find returns the informer with this name, or the only one with this part in its name.
func (f *file) find(part string) (*informer, error) {
	var all, some []string
	var found *informer
	for _, i := range f.informers {
		if i.name == part || i.space == part {
			return i, nil
		}
		all = append(all, i.name)
		if strings.Contains(i.name, part) {
			found, some = i, append(some, i.name)
		}
	}
	switch len(some) {
	case 1:
		return found, nil
	case 0:
		return nil, usageError("%s has no informer with %q in its name. It has:\n%s", f.path, part, strings.Join(all, "\n"))
	}
	return nil, usageError("several informers have %q in their names:\n%s", part, strings.Join(some, "\n"))
}

// chosen returns the informer that the second argument names, or all informers if there is none.
func (f *file) chosen(args []string) ([]*informer, error) {
	if len(args) > 1 {
		i, err := f.find(args[1])
		return []*informer{i}, err
	}
	return slices.DeleteFunc(slices.Clone(f.informers), func(i *informer) bool { return i.space == workqueuesSpace }), nil
}
