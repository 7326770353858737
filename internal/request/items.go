package request

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrNoAnswer is returned by [Items] if the server cannot be reached, or ends the connection.
var ErrNoAnswer = errors.New("the server does not answer")

// Items calls list. list opens one watch with its context. The watch should begin with all objects (KEP-3157), and list
// reads it up to the bookmark behind them. The [Transport] asks for a list with the options o instead: unlike a watch
// it may be compressed, see [Link]. The Transport reads the list item by item, and makes events of the items. same is
// called for objects in protobuf. If it returns true, the object is left out. same must not keep its bytes. It runs in
// the goroutine that reads the watch. If the server answers in pages, paged is true, and all pages are read if they are
// of one version.
//
// The error is [ErrNotSeen] as in [Look], [ErrUnsupported] if the answer is no list in protobuf or JSON, [ErrNoAnswer]
// if there is no answer, and io.ErrUnexpectedEOF if it was cut. It wraps the error of same. Otherwise it is the error
// of list: the client makes errors of other answers of the server.
func Items(ctx context.Context, o metav1.ListOptions, list func(context.Context) error, same func(Item, []byte) (bool, error)) (paged bool, err error) {
	x := &items{options: o, same: same}
	x.exchange.send, x.exchange.watch = x.send, true
	err = x.end(exchanged(ctx, &x.exchange, func(ctx context.Context) error {
		defer x.over.Store(true)
		return list(ctx)
	}))
	return x.pages != nil && x.pages.token != "", err
}

// items is one call of [Items]. It is the body of the watch.
type items struct {
	options metav1.ListOptions
	same    func(Item, []byte) (bool, error)

	over atomic.Bool // list has returned. Its context has ended, or is about to.

	exchange exchange // Its lock is held while a request is sent and during a Read. It guards:
	pages    *pages   // Nil before there is an answer.
	buffer   []byte
	events   []byte // The part of buffer that nobody has read yet.
	err      error  // Why no more is read.
	cause    error  // The same, unless the end of the call was the reason.
	lost     error  // Why the last request got no answer. Clients may hide it.
}

// end waits for a Read, and returns the error of the call.
func (x *items) end(err error) error {
	x.exchange.mu.Lock()
	defer x.exchange.mu.Unlock()
	if x.pages != nil {
		x.pages.close()
	}
	switch {
	case err == nil || errors.Is(err, ErrNotSeen) || errors.Is(err, errMore):
	case x.pages == nil && x.lost != nil:
		return fmt.Errorf("%w: %w", ErrNoAnswer, x.lost)
	case x.cause != nil && !errors.Is(x.cause, io.EOF):
		return x.cause
	case x.cause != nil && errors.Is(err, io.ErrUnexpectedEOF): // But the list was complete.
		return fmt.Errorf("%w: its list has ended, and the watch that was made of it has not brought all: %v", ErrUnsupported, err) //nolint:errorlint // Nothing was cut.
	}
	return err
}

// send sends the request for the list. If the answer is no list, the client gets it as it is.
func (x *items) send(t Transport, r *http.Request) (*http.Response, error) {
	p := newPages(t, listInsteadOf(r, x.options))
	refusal, err := p.begin()
	if refusal != nil || p.body == nil {
		x.lost = err
		return refusal, err
	}
	if x.pages, x.err, x.cause = p, err, err; err != nil {
		return nil, errAnswered
	}
	return answerTo(r, p.list.contentType(), x), nil
}

// listInsteadOf returns a request for a list of the objects that a watch is opened for.
func listInsteadOf(r *http.Request, o metav1.ListOptions) *http.Request {
	r = r.Clone(r.Context())
	query := r.URL.Query()
	for _, ofWatch := range []string{"watch", "sendInitialEvents", "allowWatchBookmarks", "timeoutSeconds", "timeout", "resourceVersion", "resourceVersionMatch"} {
		query.Del(ofWatch)
	}
	if o.ResourceVersion != "" {
		query.Set("resourceVersion", o.ResourceVersion)
	}
	if o.ResourceVersionMatch != "" {
		query.Set("resourceVersionMatch", string(o.ResourceVersionMatch))
	}
	if o.Limit > 0 {
		query.Set("limit", fmt.Sprint(o.Limit))
	}
	r.URL.RawQuery = query.Encode()
	accept := r.Header.Get("Accept")
	r.Header.Set("Accept", strings.ReplaceAll(accept, "as=PartialObjectMetadata;", "as=PartialObjectMetadataList;"))
	return r
}

// Read implements [io.Reader], for the client: it returns watch events.
func (x *items) Read(p []byte) (int, error) {
	x.exchange.mu.Lock()
	defer x.exchange.mu.Unlock()
	for len(x.events) == 0 && x.err == nil {
		if x.over.Load() {
			x.err = errAnswered
			break
		}
		x.buffer, x.err = x.next(x.buffer[:0])
		if x.events = x.buffer; !x.over.Load() {
			x.cause = x.err
		}
	}
	n := copy(p, x.events)
	if x.events = x.events[n:]; n > 0 || len(p) == 0 {
		return n, nil
	}
	if x.err == io.EOF { //nolint:errorlint // It is returned as it is.
		return 0, io.EOF
	}
	return 0, io.ErrUnexpectedEOF // Clients log it least.
}

// Close implements [io.Closer]. It does not wait for a Read: the context of the call ends that.
func (x *items) Close() error { return nil }

// next reads an item, and appends an event unless the item is known. It returns io.EOF with the
// last event.
func (x *items) next(events []byte) ([]byte, error) {
	item, err := x.pages.next()
	if err == io.EOF { //nolint:errorlint // It is returned as it is.
		events, err = x.pages.list.endBookmark(events, metav1.ObjectMeta{
			ResourceVersion: x.pages.resourceVersion, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		})
		return events, cmp.Or(err, io.EOF)
	}
	if err != nil {
		return events, err
	}
	if _, ok := x.pages.list.(*protobufList); ok {
		of, err := parseItem(item)
		if err != nil {
			return events, err
		}
		if known, err := x.same(of, item); err != nil || known {
			return events, err
		}
	}
	return x.pages.list.added(events, item)
}
