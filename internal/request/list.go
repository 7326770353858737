package request

import (
	"bufio"
	"cmp"
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
func checkKind(kind string) error {
	if !strings.HasSuffix(kind, "List") {
		return fmt.Errorf("%w: it answers with a %s", ErrUnsupported, kind)
	}
	return nil
}

// protobufList reads a list in protobuf: a prefix, and a runtime.Unknown. Field 2 of that is the list. Field 1 of the
// list is its metadata, and each field 2 is an item.
type protobufList struct {
	listHead
	in     *bufio.Reader
	items  *message // The list. Nil: find was not called yet.
	buffer []byte
}

func newProtobufList(r io.Reader) *protobufList {
	return &protobufList{in: bufio.NewReaderSize(r, 64<<10)}
}

func (p *protobufList) next() ([]byte, error) {
	if p.items == nil {
		if err := p.find(); err != nil {
			return nil, unexpectedEnd(err)
		}
	}
	for {
		number, size, err := p.items.next()
		if err == io.EOF { //nolint:errorlint // It is returned as it is.
			_, err = io.Copy(io.Discard, p.in) // So that the connection can be used again.
			return nil, cmp.Or(err, io.EOF)
		}
		if err == nil {
			p.buffer, err = p.items.read(size, p.buffer)
		}
		if err == nil && number == listMeta {
			err = p.ListMeta.Unmarshal(p.buffer)
		}
		if err != nil || number == listItem {
			return p.buffer, unexpectedEnd(err)
		}
	}
}

// find reads up to the list.
func (p *protobufList) find() error {
	if err := readPrefix(p.in); err != nil {
		return err
	}
	whole := message{in: p.in, left: math.MaxInt64}
	for {
		number, size, err := whole.next()
		if err == nil && number == unknownRaw {
			p.items = &message{in: p.in, left: size}
			return checkKind(p.Kind)
		}
		if err == nil {
			p.buffer, err = whole.read(size, p.buffer)
		}
		if err == nil && number == unknownTypeMeta {
			err = p.TypeMeta.Unmarshal(p.buffer)
		}
		if err != nil {
			return err
		}
	}
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
	found  bool // The items were found.
	inside bool // In the items.
	ended  bool
	item   json.RawMessage
}

var errNoList = errors.New("no list in JSON")

func (j *jsonList) next() ([]byte, error) {
	for {
		if j.inside && j.dec.More() {
			err := j.dec.Decode(&j.item)
			if err == nil && j.item[0] != '{' {
				err = fmt.Errorf("%w: an item is no object", errNoList)
			}
			return j.item, unexpectedEnd(err)
		}
		token, err := j.dec.Token()
		if err == io.EOF && j.ended { //nolint:errorlint // It is returned as it is.
			return nil, io.EOF
		}
		if err == nil {
			err = j.field(token)
		}
		if err != nil {
			return nil, unexpectedEnd(err)
		}
	}
}

// field reads a field of the list, or the beginning of the items. The decoder checks that the tokens are in order.
func (j *jsonList) field(token json.Token) (err error) {
	name, isField := token.(string)
	switch {
	case j.ended:
		return errNoList
	case token == json.Delim('{'):
	case token == json.Delim(']'):
		j.inside = false
	case token == json.Delim('}'):
		if j.ended = true; !j.found {
			return fmt.Errorf("%w: it answers with a %s", ErrUnsupported, j.Kind)
		}
	case !isField:
		return errNoList
	case name == "items":
		j.found = true
		token, err = j.dec.Token()
		if j.inside = token == json.Delim('['); err == nil && !j.inside && token != nil { // A list of none may have null.
			return errNoList
		}
	case name == "kind":
		return j.dec.Decode(&j.Kind)
	case name == "apiVersion":
		return j.dec.Decode(&j.APIVersion)
	case name == "metadata":
		return j.dec.Decode(&j.ListMeta)
	default:
		return j.dec.Decode(new(json.RawMessage))
	}
	return err
}

func (j *jsonList) contentType() string { return runtime.ContentTypeJSON }

// added appends an event. The items of a typed list lack their kind: the kind of the list, which stands before the
// items, says it. If an item has a kind, that one counts, because it comes later in the event.
func (j *jsonList) added(events, item []byte) ([]byte, error) {
	events = append(events, `{"type":"ADDED","object":{`...)
	if j.Kind != "" {
		events = fmt.Appendf(events, `"kind":%q,"apiVersion":%q,`, j.itemKind(), j.APIVersion)
	}
	return append(append(events, item[1:]...), "}\n"...), nil
}

func (j *jsonList) endBookmark(events []byte, m metav1.ObjectMeta) ([]byte, error) {
	event, err := json.Marshal(metav1.WatchEvent{Type: string(watch.Bookmark), Object: runtime.RawExtension{
		Object: &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: j.APIVersion, Kind: j.itemKind()}, ObjectMeta: m},
	}})
	return append(append(events, event...), '\n'), err
}
