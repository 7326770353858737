package request

import (
	"context"
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
)

type checkKey struct{}

type uncheckedKey struct{}

// WithCheck returns a context whose requests a [Transport] shows to check, if they ask for a
// list of a resource. If check returns an error, the request is not sent, and the client
// returns that error.
func WithCheck(ctx context.Context, check func(Asked) error) context.Context {
	return context.WithValue(ctx, checkKey{}, check)
}

// WithoutCheck returns a context for requests that no check is about, nor one that is added to
// it later.
func WithoutCheck(ctx context.Context) context.Context {
	return context.WithValue(ctx, uncheckedKey{}, true)
}

// A Transport shows requests to the [Look] or the check of their context, and sends those of [Metadata],
// [Objects] and [Items] in another form. It meters what comes, see [WithMeter].
type Transport struct {
	http.RoundTripper
	// Link decides which lists are compressed. Nil: that is left to the RoundTripper.
	Link *Link
}

// RoundTrip implements [http.RoundTripper].
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.Show(r); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // As a RoundTripper must.
		}
		if errors.Is(err, errLooked) { // The client need not count it as an error.
			return answerTo(r, runtime.ContentTypeJSON, http.NoBody), nil
		}
		return nil, err
	}
	if x, _ := r.Context().Value(exchangeKey{}).(*exchange); x != nil && x.isAbout(r) {
		return x.roundTrip(t, r)
	}
	resp, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		meter(r, resp)
	}
	return resp, err
}

// isAbout reports whether r, or what was redirected to r, is a request of the call.
func (x *exchange) isAbout(r *http.Request) bool {
	_, err := Of(r)
	for r.Response != nil && r.Response.Request != nil {
		r = r.Response.Request
	}
	return err == nil && (r.URL.Query().Get("watch") != "") == x.watch
}

// Show shows r to the Look or the check of its context, and returns why it is not to be sent. It is
// for requests that do not come to the Transport, because their client's transport is not wrapped.
func (t Transport) Show(r *http.Request) error {
	asked, err := Of(r)
	if err != nil { // A ListerWatcher may ask for other things too.
		return nil
	}
	if l, looked := r.Context().Value(lookKey{}).(*look); looked {
		l.CompareAndSwap(nil, &Seen{asked, r, t})
		return errLooked
	}
	check, checked := r.Context().Value(checkKey{}).(func(Asked) error)
	if !checked || r.Context().Value(uncheckedKey{}) != nil {
		return nil
	}
	return check(asked)
}

// WrappedRoundTripper implements k8s.io/apimachinery/pkg/util/net.RoundTripperWrapper.
func (t Transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }
