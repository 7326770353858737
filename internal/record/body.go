package record

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"sync"
)

// A Body is the encoding of an object, made before its record. The size of an
// object has to be known when it is put, and encoding an object of a protobuf
// type takes little longer than computing its size.
type Body struct {
	memory []byte // headRoomBytes, bytes, TailBytes.
	bytes  []byte
}

const (
	minBodyBits, maxBodyBits = 9, 15 // Larger bodies are not pooled.

	scratchBytes = 1 << maxBodyBits

	// headRoomBytes is room for the head of the record, so that the body need not
	// be copied behind it. It is copied if the head is longer.
	headRoomBytes = 192

	// TailBytes is the room behind a record, for a checksum.
	TailBytes = 4
)

// bodyPools hold unused bodies, by the size of their memory.
var bodyPools [maxBodyBits + 1]sync.Pool

// scratchPool holds buffers that protobuf is encoded into, from their ends.
var scratchPool = sync.Pool{New: func() any { return new([scratchBytes]byte) }}

func newBody(size int) *Body {
	whole := headRoomBytes + size + TailBytes
	class := max(bits.Len(uint(whole-1)), minBodyBits)
	var b *Body
	if class > maxBodyBits {
		b = &Body{memory: make([]byte, whole)}
	} else if b, _ = bodyPools[class].Get().(*Body); b == nil {
		b = &Body{memory: make([]byte, 1<<class)}
	}
	b.bytes = b.memory[headRoomBytes : headRoomBytes+size]
	return b
}

// Release lets the memory be used again.
func (b *Body) Release() {
	if class := bits.Len(uint(len(b.memory) - 1)); class >= minBodyBits && class <= maxBodyBits {
		bodyPools[class].Put(b)
	}
}

// record puts the head into the room before the body, and returns the record, with
// room for a checksum behind it. It returns nil if the room is too small.
func (b *Body) record(head []byte) []byte {
	if b.memory == nil || len(head) > headRoomBytes {
		return nil
	}
	from := headRoomBytes - len(head)
	copy(b.memory[from:], head)
	return b.memory[from : headRoomBytes+len(b.bytes)]
}

// encode encodes an object. sizeBytes is as in [goType.appendBody].
func (g *goType) encode(obj any, sizeBytes int) (b *Body, err error) {
	defer func() { // As in AppendOfSize.
		if p := recover(); p != nil {
			b, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	if g.codec == CodecProtobuf && g.bodyBytes.Load() <= scratchBytes/2 && g.fillsFromTheEnd(obj.(protobufObject)) {
		if b, err = encodeProtobuf(obj.(protobufObject)); err == nil {
			g.noteBodyBytes(len(b.bytes))
			return b, nil
		}
	}
	var buf bytes.Buffer
	if err := g.appendBody(&buf, obj, sizeBytes); err != nil {
		return nil, err
	}
	return &Body{bytes: buf.Bytes()}, nil
}

// fillsFromTheEnd reports whether the type's MarshalToSizedBuffer writes into the end
// of a larger buffer, as generated code does. It encodes the first object both ways:
// into a larger buffer, and into one of its size.
func (g *goType) fillsFromTheEnd(obj protobufObject) bool {
	if known := g.fromTheEnd.Load(); known != nil {
		return *known
	}
	var exact bytes.Buffer
	if appendProtobufOfSize(&exact, obj, obj.Size()) != nil {
		return false // Nothing is known yet.
	}
	b, err := encodeProtobuf(obj)
	same := err == nil && bytes.Equal(b.bytes, exact.Bytes())
	if exact.Len() > 0 && exact.Len() <= scratchBytes { // Else the comparison proves nothing.
		g.fromTheEnd.Store(&same)
	}
	return same
}

// encodeProtobuf encodes an object of unknown size, of scratchBytes at most.
func encodeProtobuf(obj protobufObject) (b *Body, err error) {
	defer func() {
		if p := recover(); p != nil { // The object may be larger than the buffer.
			b, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	scratch := scratchPool.Get().(*[scratchBytes]byte)
	defer scratchPool.Put(scratch)
	n, err := obj.MarshalToSizedBuffer(scratch[:])
	if err != nil {
		return nil, err
	}
	if n < 0 || n > scratchBytes {
		return nil, errors.New("protobuf of an impossible size")
	}
	b = newBody(n)
	copy(b.bytes, scratch[scratchBytes-n:])
	return b, nil
}
