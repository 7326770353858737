package check

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/internal/testsupport/apiserver"
)

// A File is what a cache file with one informer says, read without the code under
// test.
type File struct {
	Exists       bool
	Begun        bool // It has the format.
	Checkpoint   checkpoint.Record
	StoreVersion string // Of the store's state record.
	Count        int    // Likewise.
	Objects      map[string]*corev1.ConfigMap
	Entries      map[string]bool // Of the index, see entry.
	Deltas       []Delta         // In order.
	Handlers     map[string]Handler

	// Problems are what is wrong with the file as such.
	Problems []string
}

// A Delta is one that somebody must get.
type Delta struct {
	Number uint64
	Type   string
	Key    string
}

// A Handler says how far a durable handler has come.
type Handler struct {
	Cursor uint64 `json:"cursor"`
}

// ReadFile reads a cache file that nobody writes to. There may be none.
func ReadFile(path string) (f *File, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { // bbolt asserts what it reads.
		if p := recover(); p != nil {
			err = fmt.Errorf("read %s: panic: %v", path, p)
		}
	}()
	f = &File{Objects: map[string]*corev1.ConfigMap{}, Entries: map[string]bool{}, Handlers: map[string]Handler{}}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	f.Exists = true
	if content, err := os.ReadFile(path); err != nil || !bytes.Contains(content, []byte("warmwatch")) {
		return f, err // bbolt cannot read half of a new file.
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer db.Close()
	return f, db.View(func(tx *bolt.Tx) error {
		// bbolt's check runs in a goroutine of its own, where a page that is not
		// what it says ends the process: this walk would have panicked before.
		if err := walk(tx.Cursor().Bucket()); err != nil {
			return err
		}
		for err := range tx.Check() {
			f.problem("bbolt: %v", err)
		}
		return tx.ForEach(func(space []byte, b *bolt.Bucket) error {
			if string(space) == "warmwatch" {
				f.Begun = true
				return nil
			}
			if b == nil {
				f.problem("%q is not a bucket", space)
				return nil
			}
			return f.space(string(space), b)
		})
	})
}

// walk reads every key and value.
func walk(b *bolt.Bucket) error {
	sum := uint32(0)
	return b.ForEach(func(k, v []byte) error {
		if v == nil {
			return walk(b.Bucket(k))
		}
		sum = crc32.Update(crc32.Update(sum, castagnoli, k), castagnoli, v)
		return nil
	})
}

func (f *File) problem(format string, args ...any) {
	f.Problems = append(f.Problems, fmt.Sprintf(format, args...))
}

// Version is the resourceVersion of the checkpoint, 0 if there is none.
func (f *File) Version() int {
	v, err := strconv.Atoi(f.Checkpoint.ResourceVersion)
	if err != nil {
		return 0
	}
	return v
}

func (f *File) space(space string, b *bolt.Bucket) error {
	for name, read := range map[string]func(key string, payload []byte) error{
		"objects": f.object, "index": f.entry, "deltas": f.delta, "handlers": f.handler,
		"store": f.store, "checkpoint": f.checkpoint,
	} {
		bucket := b.Bucket([]byte(name))
		if bucket == nil {
			continue
		}
		err := bucket.ForEach(func(k, v []byte) error {
			payload, err := unseal(space+"/"+name+"/"+string(k[1:]), v)
			if err == nil {
				err = read(string(k[1:]), payload)
			}
			if err != nil {
				f.problem("%s %q: %v", name, k, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func unseal(of string, v []byte) ([]byte, error) {
	if len(v) < 4 {
		return nil, fmt.Errorf("%d bytes", len(v))
	}
	payload := v[:len(v)-4]
	if crc32.Update(crc32.Checksum([]byte(of), castagnoli), castagnoli, payload) != binary.LittleEndian.Uint32(v[len(payload):]) {
		return nil, errors.New("wrong checksum")
	}
	return payload, nil
}

func (f *File) object(key string, payload []byte) error {
	r, err := record.Parse(payload)
	if err != nil {
		return err
	}
	obj, err := r.Decode(func() any { return &corev1.ConfigMap{} })
	if err != nil {
		return err
	}
	f.Objects[key] = obj.(*corev1.ConfigMap)
	return nil
}

func cut(p string) (head, rest string, err error) {
	n, used := binary.Uvarint([]byte(p[:min(len(p), binary.MaxVarintLen64)]))
	if used <= 0 || n > uint64(len(p)-used) {
		return "", "", errors.New("malformed")
	}
	return p[used : used+int(n)], p[used+int(n):], nil
}

func entry(index, value, key string) string { return index + "=" + value + ": " + key }

func (f *File) entry(key string, _ []byte) error {
	name, rest, err := cut(key)
	if err != nil {
		return err
	}
	token, object, err := cut(rest)
	if err != nil || token == "" {
		return errors.Join(errors.New("no token"), err)
	}
	f.Entries[entry(name, token[1:], object)] = true
	return nil
}

func (f *File) delta(key string, payload []byte) error {
	if len(key) != 9 || len(payload) < 5 {
		return errors.New("malformed")
	}
	end := len(payload) - 4
	payload = payload[end-int(binary.BigEndian.Uint32(payload[end:])) : end] // Behind the records.
	_, used := binary.Uvarint(payload[1:])                                   // The number of the write.
	if used <= 0 {
		return errors.New("malformed")
	}
	typ, rest, err := cut(string(payload[1+used:]))
	if err != nil {
		return err
	}
	object, _, err := cut(rest)
	f.Deltas = append(f.Deltas, Delta{binary.BigEndian.Uint64([]byte(key)), typ, object})
	return err
}

func (f *File) handler(key string, payload []byte) error {
	var h Handler
	err := json.Unmarshal(payload, &h)
	f.Handlers[key] = h
	return err
}

func (f *File) store(_ string, payload []byte) error {
	var s struct {
		ResourceVersion string
		Count           int
	}
	err := json.Unmarshal(payload, &s)
	f.StoreVersion, f.Count = s.ResourceVersion, s.Count
	if c := &f.Checkpoint; c.State != "" && c.HighestVersion == "" { // Checkpoint and store come in any order.
		c.ResourceVersion = f.StoreVersion
	}
	return err
}

func (f *File) checkpoint(_ string, payload []byte) (err error) {
	f.Checkpoint, err = checkpoint.Parse(payload, f.StoreVersion)
	return err
}

// Violations compares the file with the history of the server and with what the
// durable handler got (A1, A2, A5, D2).
func (f *File) Violations(s *apiserver.Server, w *World) []string {
	bad := slices.Clone(f.Problems)
	note := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	if f.Count != len(f.Objects) {
		note("A1: %d objects are stored, and counted %d", len(f.Objects), f.Count)
	}
	for key, obj := range f.Objects {
		version, _ := strconv.Atoi(obj.ResourceVersion)
		if truth := objectAt(s, version); truth == nil || !apiequality.Semantic.DeepEqual(truth, obj) || apiserver.Key(obj) != key {
			note("S2: %s is stored as %s@%d, which never was", key, apiserver.Key(obj), version)
		}
	}
	if f.Checkpoint.State == checkpoint.StateComplete {
		if d := diff(versionsOf(s.ObjectsAt(f.Version())), versionsOf(f.Objects)); d != "" {
			note("A2: the file does not hold the state at its version %d: %s", f.Version(), d)
		}
	}
	if f.Checkpoint.IndexVersion != "" {
		want := map[string]bool{}
		for key, obj := range f.Objects {
			want[entry(colorIndex, obj.Data["color"], key)] = true
		}
		if !maps.Equal(want, f.Entries) {
			note("A5: %d index entries are stored, expected %d", len(f.Entries), len(want))
		}
	}
	for _, name := range w.Durables() {
		bad = append(bad, f.undelivered(name, w.Belief(name).Newest)...)
	}
	return bad
}

// undelivered are promises to a durable handler that the file cannot keep.
func (f *File) undelivered(handler string, newest map[string]LastState) (bad []string) {
	cursor := f.Handlers["handler/"+handler].Cursor // One that starts over gets the deletions behind it, too.
	waiting := map[string]bool{}
	for _, d := range f.Deltas {
		if d.Number > cursor && d.Type == "Deleted" {
			waiting[d.Key] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(newest)) {
		last, stored, version := newest[key], f.Objects[key], 0
		if stored != nil {
			version, _ = strconv.Atoi(stored.ResourceVersion)
		}
		switch {
		case stored == nil && !last.Gone && !waiting[key]:
			bad = append(bad, fmt.Sprintf("D2: the durable handler %s was notified of %s@%d; it is not in the file, and no deletion waits", handler, key, last.Version))
		case stored != nil && version < last.Version:
			bad = append(bad, fmt.Sprintf("D2: the durable handler %s was notified of %s@%d (deleted: %v), the file has @%d", handler, key, last.Version, last.Gone, version))
		case stored != nil && last.Lost && version <= last.Version:
			bad = append(bad, fmt.Sprintf("D2: the durable handler %s was notified that %s@%d is gone, the file has it", handler, key, last.Version))
		}
	}
	return shorten(bad)
}

const shown = 5

// shorten leaves what can be read.
func shorten(list []string) []string { return shortenTo(shown, list) }

func shortenTo(most int, list []string) []string {
	if len(list) > most {
		return append(list[:most:most], fmt.Sprintf("and %d more like this", len(list)-most))
	}
	return list
}

func versionsOf[O metav1.Object](objects map[string]O) map[string]int {
	vs := make(map[string]int, len(objects))
	for key, obj := range objects {
		vs[key], _ = strconv.Atoi(obj.GetResourceVersion())
	}
	return vs
}

// diff says how two states differ, or nothing.
func diff(want, got map[string]int) string {
	var ds []string
	for key, version := range want {
		if other, found := got[key]; !found {
			ds = append(ds, fmt.Sprintf("%s@%d is missing", key, version))
		} else if other != version {
			ds = append(ds, fmt.Sprintf("%s is @%d, expected @%d", key, other, version))
		}
	}
	for key, version := range got {
		if _, found := want[key]; !found {
			ds = append(ds, fmt.Sprintf("%s@%d is too much", key, version))
		}
	}
	slices.Sort(ds)
	return strings.Join(shorten(ds), "; ")
}
