package reflector

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/request"
)

// A slowServer has 600 ConfigMaps, each of which takes 50 ms to come. Its watches are silent.
type slowServer struct {
	t        *testing.T
	uncached bool // It has no watch cache, which would ignore a limit.
	asked    *journal
}

// RoundTrip implements [http.RoundTripper].
func (s slowServer) RoundTrip(r *http.Request) (*http.Response, error) {
	const objects = 600
	query := r.URL.Query()
	s.asked.note("%s", r.URL.RawQuery)
	from, _ := strconv.Atoi(query.Get("continue")) // The first page has no number.
	to, err := strconv.Atoi(query.Get("limit"))
	if to += from; err != nil || query.Get("resourceVersion") == anyVersion && !s.uncached || to > objects {
		to = objects
	}
	l := corev1.ConfigMapList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}, ListMeta: metav1.ListMeta{ResourceVersion: "9"},
		Items: make([]corev1.ConfigMap, to-from),
	}
	if to < objects {
		l.Continue = strconv.Itoa(to)
	}
	for i := range l.Items {
		l.Items[i].Name = strconv.Itoa(from + i)
	}
	body, err := json.Marshal(l)
	if err != nil {
		s.t.Error(err)
	}
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: -1, Request: r}
	answer.Body = &slowBody{ctx: r.Context(), left: string(body), each: len(body) / max(len(l.Items), 1)}
	if query.Get("watch") != "" {
		answer.Body = &slowBody{ctx: r.Context()}
	}
	return answer, nil
}

type slowBody struct {
	ctx  context.Context
	left string
	each int // Bytes in 50 ms; 0: none come.
}

// Read implements [io.Reader].
func (b *slowBody) Read(p []byte) (int, error) {
	wait := time.After(50 * time.Millisecond)
	if b.each == 0 {
		wait = nil
	}
	select {
	case <-wait:
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
	if b.left == "" {
		return 0, io.EOF
	}
	n := copy(p[:min(b.each, len(p))], b.left)
	b.left = b.left[n:]
	return n, nil
}

// Close implements [io.Closer].
func (b *slowBody) Close() error { return nil }

// listsFrom makes w list from a slowServer, with a client that has this configuration.
func (w *world) listsFrom(config *rest.Config) {
	config.Host, config.QPS = "http://server", -1
	client := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("")
	w.opts.ListerWatcher = &cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		WatchFuncWithContext: client.Watch,
	}
}

// expectAll waits, and expects that all objects were listed then.
func (w *world) expectAll() {
	w.t.Helper()
	advance(5 * time.Minute)
	if calls := w.store.calls.take(); !slices.Contains(calls, "finish 9") || w.store.indexer.Len() != 600 {
		w.t.Errorf("the list has not ended: %.1000q, %d objects", calls, w.store.indexer.Len())
	}
}

// TestAListThatTakesLongerThanARequestMay comes by several requests of the client. If it is read
// item by item, all of its pages are one request to the client, which has one time limit.
func TestAListThatTakesLongerThanARequestMay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "")
		w.listsFrom(&rest.Config{Transport: request.Transport{RoundTripper: slowServer{t: t, asked: &journal{}}}, Timeout: 10 * time.Second})
		w.run().expectAll()
	})
}

// TestAServerThatPagesItsFirstListByItemIsAskedForPages: it would have to read all objects at once.
func TestAServerThatPagesItsFirstListByItemIsAskedForPages(t *testing.T) {
	for _, uncached := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			w, asked := newEmptyWorld(t), &journal{}
			w.listsFrom(&rest.Config{Transport: request.Transport{RoundTripper: slowServer{t, uncached, asked}}})
			w.run().expectAll()
			asked.take()
			w.force()
			w.expectAll()
			limit := ""
			if uncached {
				limit = "limit=500&"
			}
			if got := asked.take(); got[0] != limit+"resourceVersion=9&resourceVersionMatch=NotOlderThan" {
				t.Errorf("uncached=%v: asked for %v", uncached, got)
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAClientThatHasNoCredentialsForAWhile fails before its requests can be seen. Once it has, lists are
// read item by item: this server streams none.
func TestAClientThatHasNoCredentialsForAWhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "")
		begun := time.Now()
		w.listsFrom(&rest.Config{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if time.Since(begun) == 0 {
				return nil, errors.New("no credentials")
			}
			return request.Transport{RoundTripper: slowServer{t: t, asked: &journal{}}}.RoundTrip(r)
		})})
		w.run().expectAll()
	})
}
