package request

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
)

type exchangeKey struct{}

// An exchange is a List call whose request a [Transport] sends in another form, or one that opens
// a watch.
type exchange struct {
	// send sends the request in its other form, and returns the response for the client. One send runs at a time.
	send  func(t Transport, r *http.Request) (*http.Response, error)
	watch bool // The call opens a watch, and reads it.

	taken  atomic.Bool // A Transport has the request.
	passed atomic.Bool // A request that no Transport has seen has come to the network.

	mu       sync.Mutex // Held while send runs. It guards:
	answered bool       // A list has come, or the call failed while it was read.
	more     bool       // The call has asked for another list after that.
	ended    bool       // The call has returned.
}

// errAnswered ends a List call whose answer the client must not decode.
var errAnswered = errors.New("the answer was read below the client")

// errMore is returned for a call that has asked for a list, got it, and asked for another one.
var errMore = errors.New("the call asks for more than one list")

// exchanged calls list, which makes one call with its context. A Transport sends the request of that call by x.send,
// perhaps more than once: clients repeat requests. When exchanged returns, send does not run any more, and the context
// has ended. A call that gets a list makes no request after it. The error is [ErrNotSeen] if the request did not come
// to a Transport. Otherwise it is the error of list.
func exchanged(ctx context.Context, x *exchange, list func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.WithValue(ctx, exchangeKey{}, x))
	defer cancel()
	// Without a Transport the request must not be sent: it may ask for the whole list.
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GetConn: func(string) {
		if !x.taken.Load() {
			x.passed.Store(true)
			cancel()
		}
	}})
	err := list(ctx)
	cancel()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	switch {
	case !x.taken.Load() || x.passed.Load():
		return ErrNotSeen
	case x.more:
		return errMore
	}
	return err
}

// IsTaken reports whether a [Transport] has taken the request of the call that has this context.
func IsTaken(ctx context.Context) bool {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x != nil && x.taken.Load()
}

// answerTo returns the response that a client gets instead of the server's.
func answerTo(r *http.Request, contentType string, body io.ReadCloser) *http.Response {
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {contentType}}, ContentLength: -1, Body: body, Request: r,
	}
}

func (x *exchange) roundTrip(t Transport, r *http.Request) (*http.Response, error) {
	x.taken.Store(true)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return nil, errAnswered
	}
	if x.answered { // An object that only the first answer had would count as existing.
		x.more = true
		return nil, errMore
	}
	// Another Transport below this one must not take the new request for the List.
	r = r.Clone(context.WithValue(WithoutCheck(r.Context()), exchangeKey{}, (*exchange)(nil)))
	if r.Header.Get("Accept-Encoding") != "identity" {
		r.Header.Del("Accept-Encoding") // The transport decompresses only what it has asked for itself.
	}
	resp, err := x.send(t, r)
	x.answered = errors.Is(err, errAnswered) || err == nil && resp.StatusCode == http.StatusOK
	return resp, err
}
