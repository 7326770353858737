package request

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// An Answer is the answer of a server that was asked for one object of a list.
type Answer struct {
	ResourceVersion string // The list's.
	First           *Item  // The first object. Nil: there is none, or it is not known.
	Count           int64  // How many objects the list has. Negative: it is not known.
	Items           int    // How many objects have come: more than one if the limit does not hold.
	Newest          string // The latest resourceVersion of these objects.
}

// AnswerIn reads the answer from a list with a limit of one object.
func AnswerIn(list runtime.Object) (a Answer, err error) {
	m, err := meta.ListAccessor(list)
	if err != nil {
		return a, fmt.Errorf("understand list %T: %w", list, err)
	}
	a.ResourceVersion = m.GetResourceVersion()
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		a.add(ItemOf(obj))
		return nil
	})
	switch remaining := m.GetRemainingItemCount(); {
	case m.GetContinue() == "":
		a.Count = int64(meta.LenList(list))
	case remaining != nil:
		a.Count = int64(meta.LenList(list)) + *remaining
	default:
		a.Count = -1 // With selectors the server does not count.
	}
	return a, err
}

// ItemOf returns the name, uid and version of an object. A transform may change them. They are empty if the object has
// no metadata.
func ItemOf(obj any) (i Item) {
	if m, err := meta.Accessor(obj); err == nil {
		i = Item{Namespace: m.GetNamespace(), Name: m.GetName(), UID: string(m.GetUID()), ResourceVersion: m.GetResourceVersion()}
	}
	return i
}

func (a *Answer) add(i Item) {
	if a.Items++; a.Items == 1 {
		a.First, a.Newest = &i, i.ResourceVersion
	}
	if order, err := resourceversion.CompareResourceVersion(a.Newest, i.ResourceVersion); err == nil && order < 0 {
		a.Newest = i.ResourceVersion
	}
}

// Ask asks the server for one of the request's objects, at the newest state. It asks for metadata if the server has it:
// an object may be large. The error is an apierrors.APIStatus if the server refuses.
func (s *Seen) Ask(ctx context.Context) (Answer, error) {
	r := listInsteadOf(s.request.Clone(ctx), metav1.ListOptions{Limit: 1})
	r.Header.Set("Accept", acceptMetadata+","+cmp.Or(r.Header.Get("Accept"), runtime.ContentTypeJSON))
	resp, err := s.transport.Link.timed(s.transport.RoundTripper, r)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusalBytes)) // The text explains the status. It may be missing.
		return Answer{}, apierrors.NewGenericServerResponse(resp.StatusCode, "list", s.Asked.Resource.GroupResource(), "", string(text), 0, true)
	}
	list, err := metadataIn(resp)
	if err != nil {
		return Answer{}, fmt.Errorf("read a list of one object: %w", err)
	}
	return AnswerIn(list)
}

const maxRefusalBytes = 2048

// metadataIn reads a list, in whole. It leaves out everything but the metadata of the objects.
func metadataIn(resp *http.Response) (*metav1.PartialObjectMetadataList, error) {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	list, contentType := &metav1.PartialObjectMetadataList{}, resp.Header.Get("Content-Type")
	switch mediaType(contentType) {
	case runtime.ContentTypeProtobuf:
		var u runtime.Unknown
		if err = u.Unmarshal(bytes.TrimPrefix(body, protobufPrefix)); err == nil {
			list.Kind, err = u.Kind, list.Unmarshal(u.Raw) // Field 1 of each object is its metadata.
		}
	case runtime.ContentTypeJSON:
		err = json.Unmarshal(body, list)
	default:
		err = fmt.Errorf("%w: it answers in %q", ErrUnsupported, contentType)
	}
	if err == nil {
		err = checkKind(list.Kind)
	}
	return list, err
}

type meterKey struct{}

// A Meter shows whether a watch brings anything. It is safe for concurrent use.
type Meter struct {
	bytes   atomic.Int64
	reading atomic.Bool
}

// WithMeter returns a context. A [Transport] has the answers to its requests metered by m.
func WithMeter(ctx context.Context, m *Meter) context.Context {
	return context.WithValue(ctx, meterKey{}, m)
}

// Bytes returns a number that grows with each byte of the answer. It is 0 until the answer begins, and if no Transport
// sees it.
func (m *Meter) Bytes() int64 { return m.bytes.Load() }

// Waits reports whether the client waits for the next byte: it is done with all bytes before.
func (m *Meter) Waits() bool { return m.reading.Load() }

// meter meters the answer to a request.
func meter(r *http.Request, resp *http.Response) {
	if m, _ := r.Context().Value(meterKey{}).(*Meter); m != nil {
		m.bytes.Add(1)
		resp.Body = meteredBody{resp.Body, m}
	}
}

type meteredBody struct {
	io.ReadCloser
	meter *Meter
}

func (b meteredBody) Read(p []byte) (int, error) {
	b.meter.reading.Store(true)
	n, err := b.ReadCloser.Read(p)
	b.meter.reading.Store(false)
	b.meter.bytes.Add(int64(n))
	return n, err
}
