package request

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// TestAListThatIsRedirected is still that of the watch that was asked for, although a server redirects
// what it has got.
func TestAListThatIsRedirected(t *testing.T) {
	var first, second string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, moved := strings.CutPrefix(r.URL.Path, "/moved/again")
		if to := "/moved" + r.URL.Path; !moved {
			if strings.HasPrefix(r.URL.Path, "/moved") {
				to = strings.Replace(r.URL.Path, "/moved", "/moved/again", 1)
			} else {
				first = r.URL.RawQuery
			}
			http.Redirect(w, r, to+"?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
			return
		}
		second = r.URL.RawQuery
		if path != "/api/v1/configmaps" {
			t.Errorf("the path is %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_, _ = w.Write(encode(t, plain, configMapsOf(0, 2, metav1.ListMeta{ResourceVersion: "200"})))
	}))
	defer api.Close()
	config := &rest.Config{Host: api.URL, QPS: -1}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return Transport{next} })
	var got watched
	err := Items(t.Context(), metav1.ListOptions{ResourceVersion: "7"}, func(ctx context.Context) error {
		w, err := openers(config)["typed, protobuf"](ctx)
		if err != nil {
			return err
		}
		return got.read(w)
	}, all)
	if err != nil || got.version != "200" || len(got.objects) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if want := "labelSelector=l&resourceVersion=7"; first != want || second != want {
		t.Errorf("asked for %s, and then for %s", first, second)
	}
}
