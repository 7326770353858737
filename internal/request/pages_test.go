package request

import (
	"errors"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestAPageThatIsPutOffIsAskedForAgain when the server says, as a client does with its requests; the
// pages before it are not.
func TestAPageThatIsPutOffIsAskedForAgain(t *testing.T) {
	for _, code := range []int{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable} {
		for _, retryAfter := range []string{"", "7"} {
			synctest.Test(t, func(t *testing.T) {
				var asked []time.Time
				n := &network{answer: func(r *http.Request) *http.Response {
					list := configMapsOf(0, 2, metav1.ListMeta{ResourceVersion: "200", Continue: "c"})
					if r.URL.Query().Get("continue") != "" {
						if asked = append(asked, time.Now()); len(asked) == 1 {
							refused := answer(code, "text/plain", nil)
							refused.Header.Set("Retry-After", retryAfter)
							return refused
						}
						list = configMapsOf(2, 4, metav1.ListMeta{ResourceVersion: "200"})
					}
					return answer(200, runtime.ContentTypeProtobuf, encode(t, plain, list))
				}}
				got, err := listInto(t, n, "typed, protobuf", metav1.ListOptions{}, all)
				if err != nil || got.version != "200" || !slices.Equal(got.objects, []string{"o0 o0", "o1 o1", "o2 o2", "o3 o3"}) {
					t.Errorf("%d: %+v, %v", code, got, err)
				}
				if requests := n.taken(); len(requests) != 3 {
					t.Errorf("%d: asked for %v", code, requests)
				}
				if retryAfter != "" && asked[1].Sub(asked[0]) < 7*time.Second {
					t.Errorf("%d: asked again after %v", code, asked[1].Sub(asked[0]))
				}
			})
		}
	}
}

// TestPagesWithoutAVersion are not known to be of one list: objects that come and go between two
// requests for a page may be left out.
func TestPagesWithoutAVersion(t *testing.T) {
	for _, version := range []string{"", "0", "opaque"} {
		n := &network{answer: func(r *http.Request) *http.Response {
			list := configMapsOf(0, 2, metav1.ListMeta{ResourceVersion: version, Continue: "c"})
			if r.URL.Query().Get("continue") != "" {
				list = configMapsOf(2, 4, metav1.ListMeta{ResourceVersion: version})
			}
			return answer(200, runtime.ContentTypeProtobuf, encode(t, plain, list))
		}}
		if got, err := listInto(t, n, "typed, protobuf", metav1.ListOptions{}, all); !errors.Is(err, ErrUnsupported) {
			t.Errorf("version %q: %+v, %v", version, got, err)
		}
	}
}
