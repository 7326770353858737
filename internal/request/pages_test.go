package request

import (
	"errors"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

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
