package queue

import (
	"encoding/binary"
	"errors"
	"fmt"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// A Delta is one change, as handlers are told it.
type Delta struct {
	// Seq orders the deltas of a log. It grows, not always by one.
	Seq  uint64
	Type cache.DeltaType
	Key  string
	// Old is the object before an update. New is the object after an addition
	// or update, and the last known one of a deletion; it may be nil there.
	Old, New any
	// FinalStateUnknown marks a deletion that nobody saw, as of an object that a list
	// lacks: New is the last known object, not the deleted one.
	FinalStateUnknown bool
	// Replaced marks the two deltas of an object that was deleted and created anew
	// while nobody watched. The first is Deleted, with the old object in New, for
	// durable handlers only. The second is Updated, with both objects. It is told to
	// durable handlers as an addition, and to plain ones as an update, as client-go does.
	Replaced bool
	// NewValue, if set, is the store's value of New in the same batch, so that New is
	// encoded once for both. OldValue, if set, is the store's former value of Old, for
	// this delta alone, and is written instead of Old. Its Seq is not read.
	NewValue, OldValue *record.Object
	// SizeBytes estimates the encoded size of Old and New together.
	SizeBytes int

	batch  uint64 // Number of the DB's batch that has the change.
	stored bool   // The delta is in the DB, too.
}

// Object returns the argument for OnDelete.
func (d *Delta) Object() any {
	if d.FinalStateUnknown {
		return cache.DeletedFinalStateUnknown{Key: d.Key, Obj: d.New}
	}
	return d.New
}

// deltaKey returns the key of a delta. Keys sort as their numbers do.
func deltaKey(seq uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], seq)
	return string(b[:])
}

func parseDeltaKey(key string) (uint64, error) {
	if len(key) != 8 {
		return 0, fmt.Errorf("queue: delta key has %d bytes, expected 8", len(key))
	}
	return binary.BigEndian.Uint64([]byte(key)), nil
}

const (
	flagFinalStateUnknown = 1 << iota
	flagOld
	flagNew
	flagReplaced
)

// deltaValue is the persist.Value of a delta:
//
//	flags  len type  len key  len old record  new record
//
// The lengths of type and key are uvarints, that of the old record has four bytes.
type deltaValue struct{ *Delta }

func (v deltaValue) SizeBytes() int { return v.Delta.SizeBytes + len(v.Key) + 16 }

func (v deltaValue) flags() (flags byte) {
	if v.FinalStateUnknown {
		flags |= flagFinalStateUnknown
	}
	if v.Replaced {
		flags |= flagReplaced
	}
	if v.Old != nil {
		flags |= flagOld
	}
	if v.New != nil {
		flags |= flagNew
	}
	return flags
}

func (v deltaValue) AppendTo(dst []byte) ([]byte, error) {
	dst = append(dst, v.flags())
	dst = appendBytes(dst, []byte(v.Type))
	dst = appendBytes(dst, []byte(v.Key))
	if v.Old != nil {
		// Four bytes are kept for the length, which is known only after encoding.
		at := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		var err error
		if v.OldValue != nil {
			dst, err = v.OldValue.AppendTo(dst)
		} else {
			dst, err = record.Append(dst, v.Seq, v.Old)
		}
		if err != nil {
			return nil, err
		}
		binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	}
	if v.NewValue != nil {
		return v.NewValue.AppendTo(dst)
	}
	if v.New != nil {
		return record.Append(dst, v.Seq, v.New)
	}
	return dst, nil
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

var errMalformed = errors.New("queue: malformed delta")

func cutBytes(p []byte) (b, rest []byte, err error) {
	n, used := binary.Uvarint(p)
	if used <= 0 || n > uint64(len(p)-used) {
		return nil, nil, errMalformed
	}
	return p[used : used+int(n)], p[used+int(n):], nil
}

// storedDelta returns the delta of an item if its objects are in memory, and else its
// encoding, which is valid as long as the item.
func storedDelta(it *persist.Item) (d *Delta, encoded []byte, err error) {
	if v, inMemory := it.Value.(deltaValue); inMemory {
		return v.Delta, nil, nil
	}
	encoded, err = it.Payload()
	return nil, encoded, err
}

// deltaHeader is a delta without its objects.
type deltaHeader struct {
	flags  byte
	typ    cache.DeltaType
	key    string
	rawKey []byte // Set instead of key by cutDelta; valid as long as the item.
}

// cutDelta cuts an encoded delta into its parts.
func cutDelta(p []byte) (h deltaHeader, oldRecord, newRecord []byte, err error) {
	if len(p) == 0 {
		return h, nil, nil, errMalformed
	}
	h.flags = p[0]
	typ, p, err := cutBytes(p[1:])
	if err != nil {
		return h, nil, nil, err
	}
	if h.rawKey, p, err = cutBytes(p); err != nil {
		return h, nil, nil, err
	}
	h.typ = cache.DeltaType(typ)
	if h.flags&flagOld != 0 {
		if len(p) < 4 {
			return h, nil, nil, errMalformed
		}
		n := binary.BigEndian.Uint32(p)
		if uint64(n) > uint64(len(p)-4) {
			return h, nil, nil, errMalformed
		}
		oldRecord, p = p[4:4+n], p[4+n:]
	}
	if h.flags&flagNew != 0 {
		newRecord = p
	}
	return h, oldRecord, newRecord, nil
}

// parseDelta decodes a delta. The result does not refer to p.
func parseDelta(seq uint64, p []byte, newObject func() any) (Delta, error) {
	h, oldRecord, newRecord, err := cutDelta(p)
	if err != nil {
		return Delta{}, err
	}
	d := Delta{
		Seq: seq, Type: h.typ, Key: string(h.rawKey), SizeBytes: len(p),
		FinalStateUnknown: h.flags&flagFinalStateUnknown != 0, Replaced: h.flags&flagReplaced != 0,
	}
	if h.flags&flagOld != 0 {
		if d.Old, err = decode(oldRecord, newObject); err != nil {
			return Delta{}, err
		}
	}
	if h.flags&flagNew != 0 {
		d.New, err = decode(newRecord, newObject)
	}
	return d, err
}

// checkTypes returns an error where parseDelta would, had the delta been written.
func (d *Delta) checkTypes(newObject func() any) error {
	for _, obj := range []any{d.Old, d.New} {
		if obj == nil {
			continue
		}
		if err := record.CheckType(obj, newObject); err != nil {
			return err
		}
	}
	return nil
}

func decode(p []byte, newObject func() any) (any, error) {
	r, err := record.Parse(p)
	if err != nil {
		return nil, err
	}
	return r.Decode(newObject)
}
