package informers_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch/informers"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

// TestAListWithoutAKind is of the kind that its client asks for, as for client-go's typed clients.
func TestAListWithoutAKind(t *testing.T) {
	api := httpserver.New(t, "one")
	a := newAgent(t, testsupport.Path(t), api)
	a.config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return withoutKinds{rt} })
	factory := a.factory()
	pods := factory.Core().V1().Pods().Informer()
	a.run(factory)
	for s, _ := informers.Of(pods); !pods.HasSynced(); time.Sleep(time.Millisecond) {
		if err := s.Status().ServerErr; err != nil {
			t.Fatal(err)
		}
	}
	expectKeys(t, pods, "ns/a")
}

// withoutKinds leaves the kinds out of lists.
type withoutKinds struct{ http.RoundTripper }

func (rt withoutKinds) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := rt.RoundTripper.RoundTrip(r)
	if err != nil || r.URL.Query().Get("watch") != "" {
		return resp, err
	}
	defer resp.Body.Close()
	var list map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, err
	}
	delete(list, "kind")
	delete(list, "apiVersion")
	body, err := json.Marshal(list)
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return resp, err
}
