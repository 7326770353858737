package queue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/record"
)

// A Delta is one change, as handlers get it.
type Delta struct {
	// Number is the place of the delta in its log. [Log.Append] numbers deltas one after the other.
	Number uint64
	// Seq is the number of the write to the store.
	Seq  uint64
	Type cache.DeltaType
	Key  string
	// Old is the object before an update. New is the object after an addition
	// or update, and the last known one of a deletion; it may be nil there.
	Old, New any
	// FinalStateUnknown marks a deletion that nobody saw: a list lacks the object, for example. New is then the last
	// known object, not the deleted one.
	FinalStateUnknown bool
	// Replaced marks the update of an object by one of another uid: Old was deleted, and New created, while nobody
	// watched. Durable handlers get OnDelete and OnAdd, plain ones OnUpdate, as in client-go. Old is nil where it
	// could not be read.
	Replaced bool
	// NewRecord and OldRecord are the records of New and Old. Without them New and Old are encoded. The delta takes
	// over OldRecord, with the capacity behind it.
	NewRecord, OldRecord []byte
	// SizeBytes is about the encoded size of Old and New together.
	SizeBytes int

	encoded []byte // See [Log.Encode].
	batch   uint64 // Number of the DB's batch that has the change.
	at      int64  // When it was appended, in Unix nanoseconds.
	stored  bool   // The delta is in the DB, too.
}

// Object returns the argument for OnDelete.
func (d *Delta) Object() any {
	if d.FinalStateUnknown || d.New == nil { // New is nil if it is not known or of another Go type.
		return cache.DeletedFinalStateUnknown{Key: d.Key, Obj: d.New}
	}
	return d.New
}

// Deletion returns the deletion that a delta has. If the delta is Replaced, that is the deletion of the replaced
// object. Any other delta must be a deletion itself.
func (d *Delta) Deletion() Delta {
	if d.Replaced {
		return Delta{Number: d.Number, Seq: d.Seq, Type: cache.Deleted, Key: d.Key, New: d.Old, FinalStateUnknown: true}
	}
	return *d
}

func (d *Delta) deletes() bool { return d.Replaced || d.Type == cache.Deleted }

// The last byte of a delta's key says whether it has a deletion.
const (
	keyOfDeletion = 'd'
	keyOfOther    = 'o'
)

// deltaKey returns the key of a delta. Keys sort as their numbers do.
func deltaKey(number uint64, deletes bool) string {
	var b [9]byte
	binary.BigEndian.PutUint64(b[:], number)
	b[8] = keyOfOther
	if deletes {
		b[8] = keyOfDeletion
	}
	return string(b[:])
}

// keyAfter returns the first possible key of the deltas behind a number.
func keyAfter(number uint64) string { return deltaKey(number+1, true) }

// ParseDeltaKey returns the number of a delta, and whether it has a deletion.
func ParseDeltaKey(key string) (number uint64, deletes bool, err error) {
	if len(key) != 9 || key[8] != keyOfDeletion && key[8] != keyOfOther {
		return 0, false, fmt.Errorf("queue: %q is no key of a delta", key)
	}
	return binary.BigEndian.Uint64([]byte(key)), key[8] == keyOfDeletion, nil
}

const (
	flagFinalStateUnknown = 1 << iota
	flagOld
	flagNew
	flagReplaced
)

// encode returns the stored form of a delta:
//
//	old record  new record  flags  seq  len type  type  len key  key  len old record  length of all from flags on
//
// It begins with the old record: the rest is appended in the room behind it, without a copy. All numbers are uvarints,
// except the last: it is four bytes, big-endian. An object that can no longer be encoded is left out.
func (d *Delta) encode() []byte {
	b, now := recordOf(d.Old, d.OldRecord), recordOf(d.New, d.NewRecord)
	flags, before := byte(0), len(b)
	if b != nil {
		flags |= flagOld
	}
	if now != nil {
		flags |= flagNew
	}
	if d.FinalStateUnknown {
		flags |= flagFinalStateUnknown
	}
	if d.Replaced {
		flags |= flagReplaced
	}
	b = slices.Grow(b, len(now)+len(d.Key)+RecordRoom)
	b = append(b, now...)
	at := len(b)
	b = binary.AppendUvarint(append(b, flags), d.Seq)
	b = appendBytes(b, []byte(d.Type))
	b = appendBytes(b, []byte(d.Key))
	b = binary.AppendUvarint(b, uint64(before))
	return binary.BigEndian.AppendUint32(b, uint32(len(b)-at))
}

// RecordRoom is the room behind [Delta.OldRecord] that saves a copy, beside the room for the other record and the key.
const RecordRoom = 64

func recordOf(obj any, known []byte) []byte {
	if obj == nil || known != nil {
		return known
	}
	o, err := record.Encode(obj)
	if err != nil {
		return nil
	}
	return o.Record()
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

// ParseDelta decodes a stored delta without its Number and SizeBytes. It has the records of the objects, not the
// objects. The records are valid as long as p is.
func ParseDelta(p []byte) (d Delta, err error) {
	if len(p) < 4 {
		return d, errMalformed
	}
	end := uint64(len(p) - 4)
	at := end - uint64(binary.BigEndian.Uint32(p[end:]))
	if at >= end { // It may have overflowed.
		return d, errMalformed
	}
	records, p := p[:at], p[at:end]
	flags, used := p[0], 0
	if d.Seq, used = binary.Uvarint(p[1:]); used <= 0 {
		return d, errMalformed
	}
	typ, p, err := cutBytes(p[1+used:])
	if err != nil {
		return d, err
	}
	key, p, err := cutBytes(p)
	if err != nil {
		return d, err
	}
	before, used := binary.Uvarint(p)
	if used <= 0 || before > uint64(len(records)) {
		return d, errMalformed
	}
	d.Type, d.Key = cache.DeltaType(typ), string(key)
	d.FinalStateUnknown, d.Replaced = flags&flagFinalStateUnknown != 0, flags&flagReplaced != 0
	if flags&flagOld != 0 {
		d.OldRecord = records[:before]
	}
	if flags&flagNew != 0 {
		d.NewRecord = records[before:]
	} else if d.Type != cache.Deleted {
		err = errMalformed
	}
	return d, err
}

// parseDelta decodes a delta. The result does not refer to p.
func parseDelta(p []byte, newObject func() any) (Delta, error) {
	d, err := ParseDelta(p)
	if err == nil && d.OldRecord != nil {
		d.Old, err = lastKnown(decode(d.OldRecord, newObject))
	}
	if err == nil && d.NewRecord != nil {
		d.New, err = d.newObject(decode(d.NewRecord, newObject))
	}
	d.OldRecord, d.NewRecord = nil, nil
	return d, err
}

// newObject returns the New of a delta. A deletion may have none.
func (d *Delta) newObject(obj any, err error) (any, error) {
	if d.Type == cache.Deleted {
		return lastKnown(obj, err)
	}
	return obj, err
}

// lastKnown leaves out an object that is of another Go type, because another transform has made it.
func lastKnown(obj any, err error) (any, error) {
	if errors.Is(err, record.ErrTypeMismatch) {
		return nil, nil
	}
	return obj, err
}

func decode(p []byte, newObject func() any) (any, error) {
	r, err := record.Parse(p)
	if err != nil {
		return nil, err
	}
	return r.Decode(newObject)
}
