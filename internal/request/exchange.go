package request

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"sync"
)

type exchangeKey struct{}

// An exchange is a List call whose request a [Transport] sends in another form: it asks for less
// than the list.
type exchange struct {
	// send sends the request in its other form, and returns the response that the client gets.
	send func(t http.RoundTripper, r *http.Request) (*http.Response, error)

	mu     sync.Mutex
	taken  bool // A Transport has the request.
	passed bool // A request that no Transport has seen has come to the network.
}

// errAnswered ends a List call whose answer the client is not to decode.
var errAnswered = errors.New("the answer was read below the client")

// exchanged calls list, which makes one List call with the context it is given, and has a Transport
// send it by send. The error is [ErrNotSeen] if the request did not come to a Transport, and else
// that of list, nil if that is errAnswered.
func exchanged(ctx context.Context, send func(http.RoundTripper, *http.Request) (*http.Response, error), list func(context.Context) error) error {
	x := &exchange{send: send}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, exchangeKey{}, x))
	defer cancel()
	// Without a Transport, the whole list shall not be asked for.
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GetConn: func(string) {
		x.mu.Lock()
		defer x.mu.Unlock()
		if !x.taken {
			x.passed = true
			cancel()
		}
	}})
	err := list(ctx)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.passed || !x.taken && err == nil {
		return ErrNotSeen
	}
	return err
}

func (x *exchange) take() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.taken = true
}
