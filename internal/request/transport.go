package request

import (
	"context"
	"net/http"
)

type checkKey struct{}

// WithCheck returns a context whose requests a [Transport] shows to check. If check returns
// an error, the request is not sent, and the client returns that error.
func WithCheck(ctx context.Context, check func(*http.Request) error) context.Context {
	return context.WithValue(ctx, checkKey{}, check)
}

// WithoutCheck returns a context for a request that [WithCheck] is not about.
func WithoutCheck(ctx context.Context) context.Context {
	return WithCheck(ctx, func(*http.Request) error { return nil })
}

// A Transport shows requests to the check of their context.
type Transport struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if check, ok := r.Context().Value(checkKey{}).(func(*http.Request) error); ok {
		if err := check(r); err != nil {
			if r.Body != nil {
				_ = r.Body.Close() // As a RoundTripper must.
			}
			return nil, err
		}
	}
	return t.RoundTripper.RoundTrip(r)
}

// WrappedRoundTripper implements k8s.io/apimachinery/pkg/util/net.RoundTripperWrapper.
func (t Transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }
