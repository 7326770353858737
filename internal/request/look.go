package request

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync/atomic"
)

// ErrNotSeen is returned by [Look] if no request of the call has come to a [Transport].
var ErrNotSeen = errors.New("the request of the ListerWatcher cannot be seen: its client's transport is not wrapped (call config.Wrap(cache.WrapTransport) before the client is made of it), or it does not use the context it is given")

// A Seen is the request that a call would have made.
type Seen struct {
	// Asked is what the request asks for.
	Asked     Asked
	request   *http.Request
	transport Transport
}

type lookKey struct{}

// A look has the first request for a list.
type look = atomic.Pointer[Seen]

var errLooked = errors.New("the request was only looked at")

// Look calls call, which opens one watch, or lists, with its context. A [Transport] does not send that request. Look
// returns it. The error is [ErrNotSeen] if the call succeeded without a Transport. It is another error if the call
// failed before, perhaps because there are no credentials at the moment: then Look can be called again.
func Look(ctx context.Context, call func(context.Context) error) (*Seen, error) {
	l := new(look)
	err := call(context.WithValue(ctx, lookKey{}, l))
	if seen := l.Load(); seen != nil {
		return seen, nil
	}
	return nil, cmp.Or(err, ErrNotSeen)
}

// Path returns the beginning of the server's paths, such as /k8s/clusters/c-1. It is usually empty.
func (s *Seen) Path() string {
	_, prefix, _ := ofPath(s.request.URL.Path)
	return prefix
}

// Server returns the root of the server's URLs.
func (s *Seen) Server() string {
	u := url.URL{Scheme: s.request.URL.Scheme, Host: s.request.URL.Host, Path: s.Path()}
	return u.String()
}

// Get asks the same server, with the credentials of the request, for another path below
// its root, such as /version. The caller closes the body.
func (s *Seen) Get(ctx context.Context, path string) (*http.Response, error) {
	r := s.request.Clone(ctx)
	r.URL.Path, r.URL.RawPath, r.URL.RawQuery = s.Path()+path, "", ""
	r.Header.Set("Accept", "application/json")
	return s.transport.Link.timed(s.transport.RoundTripper, r)
}
