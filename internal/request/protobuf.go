package request

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of k8s.io/apimachinery: runtime/generated.proto and meta/v1/generated.proto.
const (
	unknownTypeMeta protowire.Number = 1
	unknownRaw      protowire.Number = 2

	listMeta protowire.Number = 1
	listItem protowire.Number = 2

	objectMeta protowire.Number = 1

	metaName            protowire.Number = 1
	metaNamespace       protowire.Number = 3
	metaUID             protowire.Number = 5
	metaResourceVersion protowire.Number = 6
)

// protobufPrefix begins everything that Kubernetes encodes with protobuf (runtime/serializer/protobuf).
var protobufPrefix = []byte("k8s\x00")

// maxFieldBytes is more than any object has.
const maxFieldBytes = 64 << 20

var errMalformed = errors.New("malformed protobuf")

func readPrefix(in io.Reader) error {
	prefix := make([]byte, len(protobufPrefix))
	if _, err := io.ReadFull(in, prefix); err != nil {
		return unexpectedEnd(err)
	}
	if !bytes.Equal(prefix, protobufPrefix) {
		return fmt.Errorf("%w: the prefix is %q", errMalformed, prefix)
	}
	return nil
}

func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// A message is read field by field. All fields of interest have a length.
type message struct {
	in   *bufio.Reader
	left int64 // Bytes of the message.
}

// next returns the number of the next field and the size of its value. The caller reads the value next. At the end of
// the message next returns io.EOF.
func (m *message) next() (protowire.Number, int64, error) {
	if m.left == 0 {
		return 0, 0, io.EOF
	}
	tag, err := m.varint()
	if err != nil {
		return 0, 0, err
	}
	number, kind := protowire.DecodeTag(tag)
	if kind != protowire.BytesType {
		return 0, 0, fmt.Errorf("%w: field %d is of type %d", errMalformed, number, kind)
	}
	size, err := m.varint()
	if err != nil {
		return 0, 0, err
	}
	if size > uint64(m.left) {
		return 0, 0, fmt.Errorf("%w: field %d has %d bytes, the message %d", errMalformed, number, size, m.left)
	}
	return number, int64(size), nil
}

func (m *message) varint() (uint64, error) {
	v, err := binary.ReadUvarint(m)
	return v, unexpectedEnd(err)
}

// ReadByte implements [io.ByteReader].
func (m *message) ReadByte() (byte, error) {
	if m.left == 0 {
		return 0, errMalformed
	}
	m.left--
	return m.in.ReadByte()
}

// read reads a value into the buffer, which may grow.
func (m *message) read(size int64, buffer []byte) ([]byte, error) {
	if size > maxFieldBytes {
		return nil, fmt.Errorf("%w: a field has %d bytes", errMalformed, size)
	}
	buffer = slices.Grow(buffer[:0], int(size))[:size]
	_, err := io.ReadFull(m.in, buffer)
	m.left -= size
	return buffer, unexpectedEnd(err)
}

// eachField calls fn with each field of a message that has a length.
func eachField(b []byte, fn func(protowire.Number, []byte)) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		if kind == protowire.BytesType {
			value, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return errMalformed
			}
			fn(number, value)
			b = b[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return errMalformed
		}
		b = b[n:]
	}
	return nil
}
