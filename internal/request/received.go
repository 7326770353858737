package request

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds of requests of an informer.
const (
	kindList     = iota
	kindMetadata // A list of the objects' metadata.
	kindObjects  // Objects by name.
	kindWatch
	kindQuestion // A list of one object.
	kindOther    // The cluster's identity, and hashes of its schemas.
	kinds
)

var kindNames = [kinds]string{"list", "metadata", "objects", "watch", "question", "other"}

// Received counts the bytes of the answers that an informer gets, by kind of request. All methods are safe for
// concurrent use.
type Received struct{ bytes [kinds]atomic.Int64 }

type receivedKey struct{}

// WithReceived returns a context. A [Counting] transport counts the answers to its requests in r.
func WithReceived(ctx context.Context, r *Received) context.Context {
	return context.WithValue(ctx, receivedKey{}, r)
}

// ByKind returns the bytes of each kind of request: list, metadata, objects, watch, question, other.
func (r *Received) ByKind() map[string]int64 {
	all := make(map[string]int64, kinds)
	for kind, name := range kindNames {
		all[name] = r.bytes[kind].Load()
	}
	return all
}

// Total returns the bytes of all requests.
func (r *Received) Total() (n int64) {
	for kind := range r.bytes {
		n += r.bytes[kind].Load()
	}
	return n
}

// Counting counts the bodies of answers, see [WithReceived]. If the transport below decompresses a body, the
// decompressed bytes count.
type Counting struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (c Counting) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.RoundTripper.RoundTrip(r)
	if to, _ := r.Context().Value(receivedKey{}).(*Received); to != nil && err == nil {
		resp.Body = countedBody{resp.Body, &to.bytes[kindOf(r)]}
	}
	return resp, err
}

// WrappedRoundTripper implements k8s.io/apimachinery/pkg/util/net.RoundTripperWrapper.
func (c Counting) WrappedRoundTripper() http.RoundTripper { return c.RoundTripper }

func kindOf(r *http.Request) int {
	query := r.URL.Query()
	switch _, err := Of(r); {
	case err != nil:
		return kindOther
	case query.Get("watch") != "":
		return kindWatch
	case query.Get("limit") == "1" && query.Get("continue") == "":
		return kindQuestion
	case strings.Contains(query.Get("fieldSelector"), metav1.ObjectNameField+"="):
		return kindObjects
	case strings.Contains(r.Header.Get("Accept"), acceptMetadata):
		return kindMetadata
	}
	return kindList
}

type countedBody struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes.Add(int64(n))
	return n, err
}
