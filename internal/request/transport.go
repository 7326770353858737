package request

import (
	"context"
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
)

type checkKey struct{}

type uncheckedKey struct{}

// WithCheck returns a context whose requests are checked: a [Transport] calls check for each list or watch of a
// resource. If check returns an error, the request is not sent, and the client returns that error.
func WithCheck(ctx context.Context, check func(Asked) error) context.Context {
	return context.WithValue(ctx, checkKey{}, check)
}

// WithoutCheck returns a context. Requests of this context are not checked. A check added later does not change that.
func WithoutCheck(ctx context.Context) context.Context {
	return context.WithValue(ctx, uncheckedKey{}, true)
}

// A Transport shows requests to the [Look] or the check of their context. It sends the requests of [Metadata],
// [Objects] and [Items] in another form. It meters answers, see [WithMeter].
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

// isAbout reports whether r is a request of the call.
func (x *exchange) isAbout(r *http.Request) bool {
	_, err := Of(r)
	return err == nil && (r.URL.Query().Get("watch") != "") == x.watch
}

// Show shows r to the Look or the check of its context. It returns an error if r must not be sent. It is for requests
// that do not come to the Transport, because their client's transport is not wrapped.
func (t Transport) Show(r *http.Request) error {
	asked, err := Of(r)
	if err != nil { // A ListerWatcher may ask for other things, too.
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
