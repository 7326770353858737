package persist

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"sync"
)

// A body is the encoding of an object, made before its record is: to encode an
// object of a protobuf type takes little longer than to say its size, which has
// to be known when it is put.
type body struct {
	bytes []byte
}

const (
	minBodyBits, maxBodyBits = 9, 15 // Larger ones are not used again.

	scratchBytes = 1 << maxBodyBits
)

// bodyPools have bodies nobody uses, by the size of their memory.
var bodyPools [maxBodyBits + 1]sync.Pool

// scratchPool has what protobuf is encoded into, from its end.
var scratchPool = sync.Pool{New: func() any { return new([scratchBytes]byte) }}

func newBody(size int) *body {
	class := max(bits.Len(uint(max(size-1, 0))), minBodyBits)
	if class > maxBodyBits {
		return &body{make([]byte, size)}
	}
	b, _ := bodyPools[class].Get().(*body)
	if b == nil {
		b = &body{make([]byte, 1<<class)}
	}
	b.bytes = b.bytes[:size]
	return b
}

// release lets the memory be used again.
func (b *body) release() {
	if class := bits.Len(uint(cap(b.bytes))) - 1; class >= minBodyBits && class <= maxBodyBits {
		bodyPools[class].Put(b)
	}
}

// encode encodes an object, with sizeBytes as [goType.appendBody] has it.
func (g *goType) encode(obj any, sizeBytes int) (b *body, err error) {
	defer func() { // As in AppendObjectOfSize.
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
	return &body{buf.Bytes()}, nil
}

// fillsFromTheEnd reports whether the type's MarshalToSizedBuffer writes into the end
// of a larger buffer, as generated code does: the first object that is encoded must
// come out as it does in a buffer of its size.
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
	if exact.Len() > 0 && exact.Len() <= scratchBytes { // Else it says nothing.
		g.fromTheEnd.Store(&same)
	}
	return same
}

// encodeProtobuf encodes an object whose size is not known.
func encodeProtobuf(obj protobufObject) (b *body, err error) {
	defer func() {
		if p := recover(); p != nil { // It is larger than that, perhaps.
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
