package record

import (
	"bytes"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// A message says where the fields of a protobuf message are in the Go struct of
// its type.
type message struct {
	fields map[protowire.Number]*messageField
}

type messageField struct {
	index int
	// message is set if the field is a message or, with repeated, a slice of messages.
	message  *message
	repeated bool
}

// messages caches a *message for each reflect.Type. It is nil for a type whose fields do not determine the encoding.
var messages sync.Map

func messageOf(t reflect.Type) *message {
	if known, ok := messages.Load(t); ok {
		return known.(*message)
	}
	m := newMessage(t, map[reflect.Type]*message{})
	messages.Store(t, m)
	return m
}

func newMessage(t reflect.Type, all map[reflect.Type]*message) *message {
	if m, ok := all[t]; ok { // Types may contain themselves.
		return m
	}
	if t.Kind() != reflect.Struct || !reflect.PointerTo(t).Implements(reflect.TypeFor[protobufObject]()) || methodsMayBePromoted(t) {
		return nil
	}
	m := &message{fields: map[protowire.Number]*messageField{}}
	all[t] = m
	for f := range t.Fields() {
		number, ok := fieldNumber(f.Tag.Get("protobuf"))
		if !ok || !f.IsExported() {
			continue
		}
		field := &messageField{index: f.Index[0]}
		switch {
		case f.Type.Kind() == reflect.Struct:
			field.message = newMessage(f.Type, all)
		case reflect.PointerTo(f.Type).Implements(reflect.TypeFor[protobufObject]()):
			// A list in a message of its own (+protobuf.nullable).
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			field.message, field.repeated = newMessage(f.Type.Elem(), all), true
		}
		m.fields[number] = field
	}
	return m
}

// fieldNumber reads the tag of a generated type: "bytes,2,opt,name=spec".
func fieldNumber(tag string) (protowire.Number, bool) {
	_, rest, _ := strings.Cut(tag, ",")
	number, _, _ := strings.Cut(rest, ",")
	n, err := strconv.ParseInt(number, 10, 32)
	return protowire.Number(n), err == nil && n > 0
}

// A baseDecoder decodes a message beside a base object of the same type.
type baseDecoder struct {
	rest []byte // The fields of a message that have to be decoded.
}

var baseDecoders = sync.Pool{New: func() any { return new(baseDecoder) }}

// decodeWithBase decodes encoded into target, a new object of the type of base, whose
// encoding is baseEncoded. If it returns false, target must not be used.
func decodeWithBase(target, base any, encoded, baseEncoded []byte) (ok bool) {
	t := reflect.TypeOf(target)
	if t.Kind() != reflect.Pointer {
		return false
	}
	m := messageOf(t.Elem())
	if m == nil {
		return false
	}
	defer func() {
		if recover() != nil { // As in decodeBody, which the caller tries next.
			ok = false
		}
	}()
	d := baseDecoders.Get().(*baseDecoder)
	defer baseDecoders.Put(d)
	v := reflect.ValueOf(target)
	if d.message(m, v.Elem(), reflect.ValueOf(base).Elem(), encoded, baseEncoded) != nil {
		return false
	}
	quantityPlanOf(t).cacheText(v) // Fields shared with base have cached it when base was encoded.
	return true
}

var errUnexpectedEncoding = errors.New("not as generated code encodes")

// message decodes the fields whose encodings differ, and shares the others with base.
func (d *baseDecoder) message(m *message, v, base reflect.Value, encoded, baseEncoded []byte) error {
	d.rest = d.rest[:0]
	err := m.compare(encoded, baseEncoded, func(f *messageField, field, baseField []byte) error {
		if f == nil || baseField == nil || (f.message == nil && !bytes.Equal(field, baseField)) {
			d.rest = append(d.rest, field...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(d.rest) > 0 {
		// Before fields are shared, because Unmarshal may empty the message first.
		if err := v.Addr().Interface().(protobufObject).Unmarshal(d.rest); err != nil {
			return err
		}
	}
	return m.compare(encoded, baseEncoded, func(f *messageField, field, baseField []byte) error {
		if f == nil || baseField == nil {
			return nil
		}
		fv, baseValue := v.Field(f.index), base.Field(f.index)
		switch {
		case bytes.Equal(field, baseField):
			share(fv, baseValue)
			return nil
		case f.message == nil:
			return nil
		case f.repeated:
			return d.elements(f.message, fv, baseValue, field, baseField)
		default:
			return d.single(f.message, fv, baseValue, field, baseField)
		}
	})
}

// share sets v to base. A slice gets no spare capacity, so that append copies it.
func share(v, base reflect.Value) {
	if base.Kind() == reflect.Slice {
		base = base.Slice3(0, base.Len(), base.Len())
	}
	v.Set(base)
}

// compare calls do for each field in encoded. baseField is the same field of baseEncoded, or nil. f is nil if the field
// is unknown. Both encodings must have their fields in the order of their numbers, as generated code writes them.
func (m *message) compare(encoded, baseEncoded []byte, do func(f *messageField, field, baseField []byte) error) error {
	var number, baseNumber protowire.Number
	var field, baseField []byte
	for len(encoded) > 0 {
		var err error
		if number, field, encoded, err = nextField(encoded, number); err != nil {
			return err
		}
		for baseNumber < number && len(baseEncoded) > 0 {
			if baseNumber, baseField, baseEncoded, err = nextField(baseEncoded, baseNumber); err != nil {
				return err
			}
		}
		other := baseField
		if baseNumber != number {
			other = nil
		}
		if err := do(m.fields[number], field, other); err != nil {
			return err
		}
	}
	for len(baseEncoded) > 0 { // A repeated field would have changed the value in the base object.
		var err error
		if baseNumber, _, baseEncoded, err = nextField(baseEncoded, baseNumber); err != nil {
			return err
		}
	}
	return nil
}

// single decodes a field that is one message.
func (d *baseDecoder) single(m *message, v, base reflect.Value, field, baseField []byte) error {
	content, more, err := nextMessage(field)
	if err != nil {
		return err
	}
	baseContent, baseMore, err := nextMessage(baseField)
	if err != nil {
		return err
	}
	if len(more) > 0 || len(baseMore) > 0 {
		return errUnexpectedEncoding
	}
	return d.message(m, v, base, content, baseContent) // They differ, because the fields do.
}

// elements decodes a field that is a slice of messages. It compares them in pairs.
func (d *baseDecoder) elements(m *message, v, base reflect.Value, field, baseField []byte) error {
	n := 0
	for rest := field; len(rest) > 0; n++ {
		var err error
		if _, rest, err = nextMessage(rest); err != nil {
			return err
		}
	}
	v.Set(reflect.MakeSlice(v.Type(), n, n))
	for i := range n {
		var content, baseContent []byte
		var err error
		if content, field, err = nextMessage(field); err != nil {
			return err
		}
		if len(baseField) == 0 || i >= base.Len() {
			err = v.Index(i).Addr().Interface().(protobufObject).Unmarshal(content)
		} else if baseContent, baseField, err = nextMessage(baseField); err == nil {
			if bytes.Equal(content, baseContent) {
				share(v.Index(i), base.Index(i))
			} else {
				err = d.message(m, v.Index(i), base.Index(i), content, baseContent)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// nextField cuts off a field with all its values. Its number must be greater than
// before, the number of the last field.
func nextField(encoded []byte, before protowire.Number) (number protowire.Number, field, rest []byte, err error) {
	rest = encoded
	for len(rest) > 0 {
		next, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return 0, nil, nil, protowire.ParseError(n)
		}
		if number == 0 {
			number = next
		} else if next != number {
			break
		}
		size := protowire.ConsumeFieldValue(next, typ, rest[n:])
		if size < 0 {
			return 0, nil, nil, protowire.ParseError(size)
		}
		rest = rest[n+size:]
	}
	if number <= before {
		return 0, nil, nil, errUnexpectedEncoding
	}
	return number, encoded[:len(encoded)-len(rest)], rest, nil
}

// nextMessage cuts the first value off a field whose values are messages.
func nextMessage(field []byte) (content, rest []byte, err error) {
	_, typ, n := protowire.ConsumeTag(field)
	if n < 0 {
		return nil, nil, protowire.ParseError(n)
	}
	if typ != protowire.BytesType {
		return nil, nil, errUnexpectedEncoding
	}
	content, size := protowire.ConsumeBytes(field[n:])
	if size < 0 {
		return nil, nil, protowire.ParseError(size)
	}
	return content, field[n+size:], nil
}
