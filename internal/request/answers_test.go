package request

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
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
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return Transport{RoundTripper: next} })
	var got watched
	_, err := Items(t.Context(), metav1.ListOptions{ResourceVersion: "7"}, func(ctx context.Context) error {
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

// TestAWatchThatLosesItsEnd is not a list that was cut: it would be asked for in the same form for ever.
func TestAWatchThatLosesItsEnd(t *testing.T) {
	n := &network{answer: func(*http.Request) *http.Response {
		return answer(200, runtime.ContentTypeProtobuf, encode(t, plain, configMapsOf(0, 2, metav1.ListMeta{ResourceVersion: "200"})))
	}}
	open := openers(&rest.Config{Host: "https://server", Transport: Transport{RoundTripper: n}, QPS: -1})["typed, protobuf"]
	_, err := Items(t.Context(), metav1.ListOptions{}, func(ctx context.Context) error {
		w, err := open(ctx)
		if err != nil {
			return err
		}
		w = watch.Filter(w, func(e watch.Event) (watch.Event, bool) { return e, e.Type != watch.Bookmark })
		return fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, (&watched{}).read(w))
	}, all)
	if !errors.Is(err, ErrUnsupported) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

// TestTwoWatchesThatAreOpenedAtOnce are not one list, even if the call does without the second one.
func TestTwoWatchesThatAreOpenedAtOnce(t *testing.T) {
	var asked sync.WaitGroup
	asked.Add(2)
	n := &network{answer: func(*http.Request) *http.Response {
		asked.Wait()
		return answer(200, runtime.ContentTypeProtobuf, encode(t, plain, configMapsOf(0, 1, metav1.ListMeta{ResourceVersion: "200"})))
	}}
	seen := roundTripper(func(r *http.Request) (*http.Response, error) {
		asked.Done()
		return Transport{RoundTripper: n}.RoundTrip(r)
	})
	open := openers(&rest.Config{Host: "https://server", Transport: seen, QPS: -1})["typed, protobuf"]
	var got watched
	_, err := Items(t.Context(), metav1.ListOptions{}, func(ctx context.Context) error {
		var watches [2]watch.Interface
		var opening sync.WaitGroup
		for i := range watches {
			opening.Go(func() {
				if w, err := open(ctx); err == nil {
					watches[i] = w
				}
			})
		}
		opening.Wait()
		i := slices.IndexFunc(watches[:], func(w watch.Interface) bool { return w != nil })
		return got.read(watches[i])
	}, all)
	if !errors.Is(err, errMore) {
		t.Errorf("%+v, %v", got, err)
	}
}
