package request

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// Add notes an object of the list.
func (a *Answer) Add(i Item) {
	if a.Items++; a.Items == 1 {
		a.First, a.Newest = &i, i.ResourceVersion
	}
	if order, err := resourceversion.CompareResourceVersion(a.Newest, i.ResourceVersion); err == nil && order < 0 {
		a.Newest = i.ResourceVersion
	}
}

// CountOf returns [Answer.Count] of a list with a limit that has brought so many items.
func CountOf(m metav1.ListInterface, items int) int64 {
	switch remaining := m.GetRemainingItemCount(); {
	case m.GetContinue() == "":
		return int64(items)
	case remaining != nil:
		return int64(items) + *remaining
	}
	return -1 // With selectors the server does not count.
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
	list, err := listIn(resp)
	if err != nil {
		return Answer{}, err
	}
	return answerOf(list)
}

const maxRefusalBytes = 2048

func answerOf(list listReader) (a Answer, err error) {
	for {
		raw, err := list.next()
		if errors.Is(err, io.EOF) {
			a.ResourceVersion, a.Count = list.head().ResourceVersion, CountOf(&list.head().ListMeta, a.Items)
			return a, nil
		}
		if err != nil {
			return a, fmt.Errorf("read a list of one object: %w", err)
		}
		item, err := itemIn(list, raw)
		if err != nil {
			return a, fmt.Errorf("read the object of a list: %w", err)
		}
		a.Add(item)
	}
}

// itemIn reads an item of a list.
func itemIn(list listReader, raw []byte) (Item, error) {
	if _, ok := list.(*protobufList); ok {
		return parseItem(raw)
	}
	var m metav1.PartialObjectMetadata
	err := json.Unmarshal(raw, &m)
	return Item{Namespace: m.Namespace, Name: m.Name, UID: string(m.UID), ResourceVersion: m.ResourceVersion}, err
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
