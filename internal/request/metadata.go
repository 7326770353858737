package request

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ErrUnsupported is returned if the server does not answer in the form that was asked for.
var ErrUnsupported = errors.New("the server does not answer in the form that was asked for")

// An Item is what identifies an object of a list, and its version.
type Item struct{ Namespace, Name, UID, ResourceVersion string }

// acceptMetadata asks for the metadata of objects. kube-apiserver has it in protobuf for custom
// resources, too.
const acceptMetadata = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// Metadata calls list, which makes one List call with the context it is given, and has the
// [Transport] ask for the metadata of the objects instead. The answer is read as a stream: each is
// called with each object, and an error of it ends the reading and is returned. If the server
// answers in pages, all are read. Metadata returns the resourceVersion of the first page.
//
// The error is [ErrNotSeen] as that of [Look], and [ErrUnsupported] if the answer is no list of
// metadata in protobuf. Other answers of the server come as errors of the client.
func Metadata(ctx context.Context, list func(context.Context) error, each func(Item) error) (resourceVersion string, err error) {
	m := metadata{each: each}
	err = exchanged(ctx, m.send, list)
	switch {
	case m.err != nil:
		return "", m.err
	case err == nil: // Somebody has made an answer of our error, or there was no list.
		return "", ErrNotSeen
	case !m.complete:
		return "", err
	}
	return m.resourceVersion, nil
}

// metadata is one call of [Metadata].
type metadata struct {
	each            func(Item) error
	mu              sync.Mutex // One answer is read.
	begun           bool
	resourceVersion string
	complete        bool
	err             error
}

// send reads an answer once: each was called then, and must not be called with another list.
func (m *metadata) send(t http.RoundTripper, r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun {
		return nil, errAnswered
	}
	resp, err := sendForMetadata(t, r, "")
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	m.begun = true
	listed, err := readMetadata(resp, m.each)
	m.resourceVersion = listed.ResourceVersion
	for err == nil && listed.Continue != "" {
		if resp, err = sendForMetadata(t, r, listed.Continue); err == nil {
			listed, err = readMetadata(resp, m.each)
		}
	}
	m.complete, m.err = err == nil, err
	return nil, errAnswered
}

func sendForMetadata(t http.RoundTripper, r *http.Request, page string) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept", acceptMetadata)
	if page != "" {
		query := r.URL.Query()
		query.Del("resourceVersion")
		query.Del("resourceVersionMatch")
		query.Set("continue", page)
		r.URL.RawQuery = query.Encode()
	}
	return t.RoundTrip(r)
}

// readMetadata reads a PartialObjectMetadataList in protobuf: a prefix, and a runtime.Unknown
// whose field 2 has the list, whose field 1 is the metadata of the list, and whose field 2 is an
// item.
func readMetadata(resp *http.Response, each func(Item) error) (listed metav1.ListMeta, err error) {
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return listed, fmt.Errorf("%w: %s", ErrUnsupported, resp.Status)
	}
	if !isProtobuf(resp) {
		return listed, fmt.Errorf("%w: it answers in %q", ErrUnsupported, resp.Header.Get("Content-Type"))
	}
	in := bufio.NewReaderSize(resp.Body, 64<<10)
	if err := readPrefix(in); err != nil {
		return listed, err
	}
	whole := &message{in: in, left: math.MaxInt64, outermost: true}
	var buffer []byte
	for complete := false; ; {
		number, size, err := whole.next()
		if err == io.EOF && complete { //nolint:errorlint // It is returned as it is.
			return listed, nil
		}
		if err != nil {
			err = unexpectedEnd(err)

			return listed, err
		}
		switch number {
		case unknownTypeMeta:
			if buffer, err = whole.read(size, buffer); err == nil {
				err = checkKind(buffer)
			}
		case unknownRaw:
			complete = true
			err = whole.within(size, func(list *message) error { return readItems(list, &listed, each) })
		default:
			buffer, err = whole.read(size, buffer)
		}
		if err != nil {
			return listed, err
		}
	}
}

func readItems(list *message, listed *metav1.ListMeta, each func(Item) error) error {
	var buffer []byte
	for {
		number, size, err := list.next()
		if err == io.EOF { //nolint:errorlint // It is returned as it is.
			return nil
		}
		if err != nil {
			return err
		}
		if buffer, err = list.read(size, buffer); err != nil {
			return err
		}
		switch number {
		case listMeta:
			err = listed.Unmarshal(buffer)
		case listItem:
			var item Item
			if item, err = parseItem(buffer); err == nil {
				err = each(item)
			}
		}
		if err != nil {
			return err
		}
	}
}

func isProtobuf(resp *http.Response) bool {
	mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && mediaType == runtime.ContentTypeProtobuf
}

func checkKind(typeMeta []byte) error {
	kind := ""
	err := eachField(typeMeta, func(number protowire.Number, value []byte) {
		if number == typeMetaKind {
			kind = string(value)
		}
	})
	if err == nil && kind != "PartialObjectMetadataList" {
		err = fmt.Errorf("%w: it answers with a %s", ErrUnsupported, kind)
	}
	return err
}

// parseItem reads an object. Field 1 of each is its metadata.
func parseItem(object []byte) (item Item, err error) {
	var failed error
	err = eachField(object, func(number protowire.Number, value []byte) {
		if number != objectMeta {
			return
		}
		failed = eachField(value, func(number protowire.Number, value []byte) {
			switch number {
			case metaName:
				item.Name = string(value)
			case metaNamespace:
				item.Namespace = string(value)
			case metaUID:
				item.UID = string(value)
			case metaResourceVersion:
				item.ResourceVersion = string(value)
			}
		})
	})
	return item, errors.Join(err, failed)
}
