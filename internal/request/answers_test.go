package request

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

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
