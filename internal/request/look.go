package request

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"
)

// ErrNotSeen is returned by [Look] if no request of the call has come to a [Transport].
var ErrNotSeen = errors.New("the request of the List call cannot be seen: its client's transport is not wrapped (call config.Wrap(cache.WrapTransport) before the client is made of it), or it does not use the context it is given")

// A Seen is the request that a List call would have made.
type Seen struct {
	// Asked is what the request asks for.
	Asked     Asked
	request   *http.Request
	transport Transport
}

type lookKey struct{}

// A look waits for the first request for a list.
type look struct {
	mu   sync.Mutex
	seen *Seen
}

var errLooked = errors.New("the request was only looked at")

// Look calls list, which makes one List call with the context it is given, and returns the
// request for a list that the call would have made, which a [Transport] has not sent. The error is [ErrNotSeen] if the
// call succeeded without a Transport. It is another one if the call failed before, perhaps
// because there are no credentials at the moment: then Look can be called again.
func Look(ctx context.Context, list func(context.Context) error) (*Seen, error) {
	l := &look{}
	err := list(context.WithValue(ctx, lookKey{}, l))
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.seen != nil:
		return l.seen, nil
	case err == nil:
		return nil, ErrNotSeen
	}
	return nil, err
}

// note takes the request, if it is the first.
func (l *look) note(r *http.Request, asked Asked, transport Transport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = &Seen{asked, r, transport}
	}
}

// Path returns what the paths of the server begin with, such as /k8s/clusters/c-1. It is usually
// empty.
func (s *Seen) Path() string {
	_, prefix, _ := ofPath(s.request.URL.Path)
	return prefix
}

// HiddenServer is [Seen.Server] of a request that was shown, see [Transport.Show], by a client that hides its
// server: it may be any.
const HiddenServer = "http://unknown"

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

// Answers reports whether the server answers what the request asks for. It is asked for one object.
func (s *Seen) Answers(ctx context.Context) bool {
	r := s.request.Clone(ctx)
	query := r.URL.Query()
	query.Del("resourceVersion") // With 0, a limit may be ignored.
	query.Del("resourceVersionMatch")
	query.Set("limit", "1")
	r.URL.RawQuery = query.Encode()
	resp, err := s.transport.RoundTripper.RoundTrip(r)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
