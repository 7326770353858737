package request

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"sync"
)

// ErrNotSeen is returned by [Look] if no request of the call has come to a [Transport].
var ErrNotSeen = errors.New("the request of the List call cannot be seen: its client's transport is not wrapped, or it does not use the context it is given")

// A Seen is the request that a List call would have made.
type Seen struct {
	// Asked is what the request asks for.
	Asked     Asked
	request   *http.Request
	transport http.RoundTripper
}

type lookKey struct{}

// A look waits for the first request for a list.
type look struct {
	mu     sync.Mutex
	seen   *Seen
	other  bool // A Transport has sent another request.
	passed bool // A request that no Transport has seen has come to the network.
}

var errLooked = errors.New("the request was only looked at")

// Look calls list, which makes one List call with the context it is given, and returns the
// request for a list that the call would have made, which a [Transport] has not sent. The error is [ErrNotSeen] if the
// request did not come to a Transport. It is another one if the call failed before, perhaps
// because there are no credentials at the moment: then Look can be called again.
func Look(ctx context.Context, list func(context.Context) error) (*Seen, error) {
	l := &look{}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, lookKey{}, l))
	defer cancel()
	// Without a Transport, the request shall not come to the server either.
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GetConn: func(string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.other {
			l.passed = true
			cancel()
		}
	}})
	err := list(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.seen != nil:
		return l.seen, nil
	case l.passed || err == nil:
		return nil, ErrNotSeen
	}
	return nil, err
}

// note takes the request, if it is the first.
func (l *look) note(r *http.Request, asked Asked, transport http.RoundTripper) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = &Seen{asked, r, transport}
	}
}

// let notes that a Transport sends a request for something else.
func (l *look) let() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.other = true
}

// Get asks the same server, with the credentials of the request, for another path below
// its root, such as /version. The caller closes the body.
func (s *Seen) Get(ctx context.Context, path string) (*http.Response, error) {
	_, prefix, _ := ofPath(s.request.URL.Path)
	r := s.request.Clone(ctx)
	r.URL.Path, r.URL.RawPath, r.URL.RawQuery = prefix+path, "", ""
	r.Header.Set("Accept", "application/json")
	return s.transport.RoundTrip(r)
}
