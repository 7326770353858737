package warmwatch_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

// slowLists lets lists trickle, so that one takes several seconds and is never silent for two, also on a busy machine.
type slowLists struct{ http.RoundTripper }

func (s slowLists) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.RoundTripper.RoundTrip(r)
	query := r.URL.Query()
	if err == nil && query.Get("limit") != "1" && query.Get("watch") == "" && strings.HasSuffix(r.URL.Path, "/configmaps") {
		resp.Body = trickle{resp.Body}
	}
	return resp, err
}

type trickle struct{ io.ReadCloser }

func (t trickle) Read(p []byte) (int, error) {
	time.Sleep(50 * time.Millisecond)
	return t.ReadCloser.Read(p[:min(len(p), 64)])
}

// TestAServerThatListsSlowlyIsHeard (A6): while a list comes, HasSynced does not turn true with what the disk has.
func TestAServerThatListsSlowlyIsHeard(t *testing.T) {
	api := newWorld(t, worldObjects)
	path := testsupport.Path(t)
	worldLife(t, api, path)
	api.Change(func(w *httpserver.World) {
		w.Delete("o003")
	})
	c, err := warmwatch.Open(t.Context(), path, warmwatch.Options{Logger: &testsupport.Quiet, ServeStaleAfter: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	config := api.Config()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return slowLists{rt} })
	config.Wrap(c.WrapTransport)
	client := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("ns")
	informer, err := c.NewSharedIndexInformer(&cache.ListWatch{WatchFuncWithContext: client.Watch, ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return client.List(ctx, o)
	}}, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps, Namespace: "ns"})
	if err != nil {
		t.Fatal(err)
	}
	api.Take()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	begun := time.Now()
	wg.Go(func() { informer.RunWithContext(ctx) })
	until(informer.HasSynced)
	if !cache.IsDone(informer.CaughtUp()) {
		t.Errorf("HasSynced after %v with %d objects, while the server was heard: %q", time.Since(begun), len(informer.GetStore().List()), api.Take())
	}
	until(func() bool { return cache.IsDone(informer.CaughtUp()) })
	t.Logf("caught up after %v: %q", time.Since(begun), api.Take())
	stop()
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
