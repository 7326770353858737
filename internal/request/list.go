package request

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// A listReader reads a list item by item, as it comes, and makes watch events of items.
type listReader interface {
	// next returns an item. The next call overwrites it. After the last item it returns io.EOF if the list is complete.
	next() ([]byte, error)
	// head returns the head of the list. It is complete once next has returned io.EOF.
	head() *listHead
	contentType() string
	// added appends the event that an item was added.
	added(events, item []byte) ([]byte, error)
	// endBookmark appends a bookmark with this metadata. It is called after the last item.
	endBookmark(events []byte, m metav1.ObjectMeta) ([]byte, error)
}

type listHead struct {
	runtime.TypeMeta
	metav1.ListMeta
}

func (h *listHead) head() *listHead { return h }

// itemKind is the kind of the items.
func (h *listHead) itemKind() string { return strings.TrimSuffix(h.Kind, "List") }

// wireBody returns io.ErrUnexpectedEOF with each error of a connection. The Link counts its bytes.
type wireBody struct {
	io.ReadCloser
	link *Link // May be nil.
}

func (b *wireBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.link.carried(n)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
	}
	return n, err
}

func mediaType(contentType string) string {
	mediaType, _, _ := mime.ParseMediaType(contentType) // Empty, if it cannot be parsed.
	return mediaType
}

// listIn returns a reader for the list of an answer.
func listIn(resp *http.Response) (listReader, error) {
	contentType := resp.Header.Get("Content-Type")
	switch mediaType(contentType) {
	case runtime.ContentTypeProtobuf:
		return newProtobufList(resp.Body), nil
	case runtime.ContentTypeJSON:
		return &jsonList{dec: json.NewDecoder(resp.Body)}, nil
	}
	return nil, fmt.Errorf("%w: it answers in %q", ErrUnsupported, contentType)
}

// checkKind returns an error for an answer without items, such as a Table.
func (h *listHead) checkKind() error {
	if !strings.HasSuffix(h.Kind, "List") {
		return fmt.Errorf("%w: it answers with a %s", ErrUnsupported, h.Kind)
	}
	return nil
}

// protobufList reads a list in protobuf: a prefix, and a runtime.Unknown. Field 2 of that is the list. Field 1 of the
// list is its metadata, and each field 2 is an item.
type protobufList struct {
	listHead
	in     *bufio.Reader
	begun  bool
	whole  message
	items  *message // The list, while it is read.
	inside bool     // The list was found.
	buffer []byte
}

func newProtobufList(r io.Reader) *protobufList {
	in := bufio.NewReaderSize(r, 64<<10)
	return &protobufList{in: in, whole: message{in: in, left: math.MaxInt64, outermost: true}}
}

func (p *protobufList) next() ([]byte, error) {
	if !p.begun {
		if err := readPrefix(p.in); err != nil {
			return nil, err
		}
		p.begun = true
	}
	for {
		found, err := p.field()
		if err == io.EOF { //nolint:errorlint // It is returned as it is.
			if p.items == nil && p.inside {
				return nil, io.EOF
			}
			if p.items == nil {
				return nil, io.ErrUnexpectedEOF
			}
			p.items = nil
			continue
		}
		if err != nil {
			return nil, unexpectedEnd(err)
		}
		if found {
			return p.buffer, nil
		}
	}
}

// field reads one field into the buffer, and reports whether it is an item.
func (p *protobufList) field() (item bool, err error) {
	m := p.items
	if m == nil {
		m = &p.whole
	}
	number, size, err := m.next()
	if err != nil {
		return false, err
	}
	if p.items == nil && number == unknownRaw {
		p.items, p.inside = m.within(size), true
		return false, p.checkKind()
	}
	if p.buffer, err = m.read(size, p.buffer); err != nil {
		return false, err
	}
	switch {
	case p.items == nil && number == unknownTypeMeta:
		err = p.TypeMeta.Unmarshal(p.buffer)
	case p.items != nil && number == listMeta:
		err = p.ListMeta.Unmarshal(p.buffer)
	case p.items != nil && number == listItem:
		return true, nil
	}
	return false, err
}

func (p *protobufList) contentType() string { return runtime.ContentTypeProtobuf }

func (p *protobufList) added(events, item []byte) ([]byte, error) {
	return p.event(events, watch.Added, item)
}

func (p *protobufList) endBookmark(events []byte, m metav1.ObjectMeta) ([]byte, error) {
	object, err := (&metav1.PartialObjectMetadata{ObjectMeta: m}).Marshal() // Field 1 of each object is its metadata.
	if err != nil {
		return nil, err
	}
	return p.event(events, watch.Bookmark, object)
}

// event appends the length of an event, and the event, a metav1.WatchEvent. Its field 1 is the type. Its field 2 is a
// runtime.RawExtension, whose field 1 is the prefix and the object.
func (p *protobufList) event(events []byte, t watch.EventType, object []byte) ([]byte, error) {
	typeMeta, err := (&runtime.TypeMeta{APIVersion: p.APIVersion, Kind: p.itemKind()}).Marshal()
	if err != nil {
		return nil, err
	}
	raw := len(protobufPrefix) + sizeBytes(unknownTypeMeta, len(typeMeta)) + sizeBytes(unknownRaw, len(object))
	extension := sizeBytes(1, raw)
	size := sizeBytes(1, len(t)) + sizeBytes(2, extension)
	events = binary.BigEndian.AppendUint32(slices.Grow(events, 4+size), uint32(size))
	events = append(appendHead(events, 1, len(t)), t...)
	events = appendHead(appendHead(events, 2, extension), 1, raw)
	events = append(events, protobufPrefix...)
	events = append(appendHead(events, unknownTypeMeta, len(typeMeta)), typeMeta...)
	return append(appendHead(events, unknownRaw, len(object)), object...), nil
}

// appendHead appends the tag and the length of a field.
func appendHead(b []byte, number protowire.Number, size int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.BytesType), uint64(size))
}

func sizeBytes(number protowire.Number, size int) int {
	return protowire.SizeTag(number) + protowire.SizeBytes(size)
}

// jsonList reads a list in JSON. Its fields may be in any order: custom resources come before the metadata of their
// list.
type jsonList struct {
	listHead
	dec    *json.Decoder
	begun  bool
	inside bool // In the items.
	items  bool // The items were found.
	item   json.RawMessage
	last   runtime.TypeMeta // Of the last item.
}

var errNoList = errors.New("no list in JSON")

func (j *jsonList) next() ([]byte, error) {
	item, err := j.read()
	if err == io.EOF && !j.items { //nolint:errorlint // It is returned as it is.
		return nil, fmt.Errorf("%w: it answers with a %s", ErrUnsupported, j.Kind)
	}
	return item, err
}

func (j *jsonList) read() ([]byte, error) {
	if !j.begun {
		if err := j.expect(json.Delim('{')); err != nil {
			return nil, err
		}
		j.begun = true
	}
	for {
		if j.inside && j.dec.More() {
			return j.readItem()
		}
		if j.inside {
			if err := j.expect(json.Delim(']')); err != nil {
				return nil, err
			}
			j.inside = false
		}
		if !j.dec.More() {
			return nil, j.end()
		}
		if err := j.field(); err != nil {
			return nil, unexpectedEnd(err)
		}
	}
}

func (j *jsonList) readItem() ([]byte, error) {
	err := j.dec.Decode(&j.item)
	if err == nil && (len(j.item) == 0 || j.item[0] != '{') {
		err = fmt.Errorf("%w: an item is no object", errNoList)
	}
	return j.item, unexpectedEnd(err)
}

// field reads a field of the list, or the beginning of the items.
func (j *jsonList) field() error {
	name, err := j.dec.Token()
	if err != nil {
		return err
	}
	switch name {
	case "kind":
		return j.dec.Decode(&j.Kind)
	case "apiVersion":
		return j.dec.Decode(&j.APIVersion)
	case "metadata":
		return j.dec.Decode(&j.ListMeta)
	case "items":
		j.items = true
		begin, err := j.dec.Token()
		if j.inside = begin == json.Delim('['); err == nil && !j.inside && begin != nil { // A list of none may have null.
			err = errNoList
		}
		return err
	}
	return j.dec.Decode(new(json.RawMessage))
}

// end returns io.EOF if the list is complete, and nothing follows it.
func (j *jsonList) end() error {
	if err := j.expect(json.Delim('}')); err != nil {
		return err
	}
	_, err := j.dec.Token()
	if err == nil {
		return errNoList
	}
	return err
}

func (j *jsonList) expect(want json.Delim) error {
	got, err := j.dec.Token()
	if err == nil && got != want {
		err = fmt.Errorf("%w: found %v instead of %v", errNoList, got, want)
	}
	return unexpectedEnd(err)
}

func (j *jsonList) contentType() string { return runtime.ContentTypeJSON }

// added appends an event. An item may lack its kind if the list has one.
func (j *jsonList) added(events, item []byte) ([]byte, error) {
	j.last = runtime.TypeMeta{}
	if err := json.Unmarshal(item, &j.last); err != nil {
		return nil, err
	}
	events = append(events, `{"type":"ADDED","object":`...)
	if j.last.Kind == "" {
		if j.Kind == "" {
			return nil, fmt.Errorf("%w: items without a kind come before that of the list", ErrUnsupported)
		}
		j.last = runtime.TypeMeta{APIVersion: j.APIVersion, Kind: j.itemKind()}
		typeMeta, err := json.Marshal(j.last)
		if err != nil {
			return nil, err
		}
		events = append(events, typeMeta[:len(typeMeta)-1]...)
		if item = item[1:]; len(bytes.TrimSpace(item)) > 1 {
			events = append(events, ',')
		}
	}
	return append(append(events, item...), "}\n"...), nil
}

func (j *jsonList) endBookmark(events []byte, m metav1.ObjectMeta) ([]byte, error) {
	of := metav1.TypeMeta{APIVersion: j.APIVersion, Kind: j.itemKind()}
	if j.last.Kind != "" {
		of = metav1.TypeMeta{APIVersion: j.last.APIVersion, Kind: j.last.Kind}
	}
	event, err := json.Marshal(struct {
		Type   watch.EventType              `json:"type"`
		Object metav1.PartialObjectMetadata `json:"object"`
	}{watch.Bookmark, metav1.PartialObjectMetadata{TypeMeta: of, ObjectMeta: m}})
	return append(append(events, event...), '\n'), err
}
