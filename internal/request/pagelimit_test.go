package request

import (
	"net/http"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestPagesOfAListGrow once they come: a list that begins with one object at a time
// takes few requests.
func TestPagesOfAListGrow(t *testing.T) {
	const objects = 2_000
	requests, longest := 0, 0
	n := &network{answer: func(r *http.Request) *http.Response {
		query := r.URL.Query()
		from, _ := strconv.Atoi(query.Get("continue"))
		limit, err := strconv.Atoi(query.Get("limit"))
		if err != nil {
			t.Error(err)
		}
		requests, longest = requests+1, max(longest, limit)
		to := min(from+limit, objects)
		m := metav1.ListMeta{ResourceVersion: "200"}
		if to < objects {
			m.Continue = strconv.Itoa(to)
		}
		return answer(200, runtime.ContentTypeProtobuf, encode(t, plain, configMapsOf(from, to, m)))
	}}
	got, err := listInto(t, n, "typed, protobuf", metav1.ListOptions{Limit: 1}, all)
	if err != nil || len(got.objects) != objects || requests > 80 || longest != 128 {
		t.Errorf("%d objects, %v, with %d requests for up to %d", len(got.objects), err, requests, longest)
	}
}
