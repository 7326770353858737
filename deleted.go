package warmwatch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/keyfield"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// deletedBucket has the last known objects of deletions that are not reconciled yet: records, by
// the reconciler's name, the object's key, its uid, and when the record was put, which is its Seq.
const deletedBucket = "deleted"

func (p *parts) deletedBucket() persist.Bucket {
	return persist.Bucket{Space: p.space, Name: deletedBucket}
}

// putDeleted keeps a deleted object, instead of an earlier state of it, which is under before. It returns the uid and the
// key of the record.
func (p *parts) putDeleted(reconciler string, name cache.ObjectName, obj any, before func(uid string) string) (uid, key string, err error) {
	if m, err := meta.Accessor(obj); err == nil {
		uid = string(m.GetUID())
	}
	value, err := record.Encode(obj)
	if err != nil {
		return "", "", err
	}
	seq := uint64(time.Now().UnixNano())
	value.SetSeq(seq)
	key = keyfield.Of(reconciler) + keyfield.Of(name.String()) + keyfield.Of(uid) + strconv.FormatUint(seq, 36)
	if len(key) > persist.MaxKeyBytes {
		return "", "", fmt.Errorf("warmwatch: key and uid of a deleted object are too long: %d bytes", len(key))
	}
	_, err = p.db.Update(func(b *persist.Batch) {
		if old := before(uid); old != "" {
			b.Delete(p.deletedBucket(), old)
		}
		b.Put(p.deletedBucket(), key, value.Record())
	})
	return uid, key, err
}

// A deletedObject is what the file has of one.
type deletedObject struct {
	seq    uint64
	object any
	err    error
}

var errNoDeletion = errors.New("warmwatch: the deleted object is lost")

// readDeleted reads deleted objects, and returns them oldest first.
func (p *parts) readDeleted(keys []string, newObject func() any) (found []deletedObject) {
	for _, key := range keys {
		d := deletedObject{err: errNoDeletion}
		_, err := p.db.View(p.deletedBucket(), key, func(it *persist.Item) error {
			d.seq, d.object, d.err = decodeDeleted(it, newObject)
			return nil
		})
		if err != nil {
			d.err = err
		}
		found = append(found, d)
	}
	slices.SortStableFunc(found, func(a, b deletedObject) int { return cmp.Compare(a.seq, b.seq) })
	return found
}

func decodeDeleted(it *persist.Item, newObject func() any) (seq uint64, obj any, err error) {
	payload, err := it.Payload()
	if err != nil {
		return 0, nil, err
	}
	r, err := record.Parse(payload)
	if err != nil {
		return 0, nil, err
	}
	obj, err = r.Decode(newObject)
	return r.Seq, obj, err
}

// waiting has the keys of the records of deleted objects, by name and uid.
type waiting map[cache.ObjectName]map[string]string

func (w waiting) set(name cache.ObjectName, uid, key string) {
	if w[name] == nil {
		w[name] = map[string]string{}
	}
	w[name][uid] = key
}

// done forgets records that are reconciled. There may be newer ones of the same objects.
func (w waiting) done(name cache.ObjectName, keys []string) {
	maps.DeleteFunc(w[name], func(_, key string) bool { return slices.Contains(keys, key) })
	if len(w[name]) == 0 {
		delete(w, name)
	}
}

// waitingDeleted returns what waits for a reconciler, and whether some of it is damaged.
func (p *parts) waitingDeleted(reconciler string) (w waiting, damaged bool, err error) {
	w = waiting{}
	err = p.scanDeleted(keyfield.Of(reconciler), func(it *persist.Item) {
		_, damage := it.Payload()
		damaged = damaged || damage != nil
		name, uid, err := cutDeletedKey(it.Key)
		if err != nil { // Nobody would ever look for it.
			damaged = true
			return
		}
		w.set(name, uid, it.Key)
	})
	return w, damaged, err
}

func cutDeletedKey(key string) (name cache.ObjectName, uid string, err error) {
	_, rest, _ := keyfield.Cut(key)
	text, rest, ok := keyfield.Cut(rest)
	uid, _, found := keyfield.Cut(rest)
	if !ok || !found {
		return name, "", fmt.Errorf("warmwatch: %q is no key of a deleted object", key)
	}
	name, err = cache.ParseObjectName(text)
	return name, uid, err
}

func (p *parts) scanDeleted(prefix string, fn func(*persist.Item)) error {
	return p.db.Read(p.space, func(s *persist.Snapshot) error {
		return s.Scan(deletedBucket, prefix, func(it *persist.Item) (bool, error) {
			ours := strings.HasPrefix(it.Key, prefix)
			if ours {
				fn(it)
			}
			return ours, nil
		})
	})
}

// removeDeleted removes deleted objects that are reconciled.
func (p *parts) removeDeleted(keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	_, err := p.db.Update(func(b *persist.Batch) {
		for _, key := range keys {
			b.Delete(p.deletedBucket(), key)
		}
	})
	return err
}

// forgetWork removes what waits for a reconciler.
func (p *parts) forgetWork(reconciler string) error {
	if err := p.work.Forget(reconciler); err != nil {
		return err
	}
	var keys []string
	if err := p.scanDeleted(keyfield.Of(reconciler), func(it *persist.Item) { keys = append(keys, it.Key) }); err != nil {
		return err
	}
	return p.removeDeleted(keys)
}
