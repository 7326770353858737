package contract_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// listFuncs list in their own ways.
var listFuncs = map[string]func(*source.Source) cache.ListWithContextFunc{
	"it sets resourceVersion=0": func(f *source.Source) cache.ListWithContextFunc {
		return func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			return f.ListWithContext(ctx, metav1.ListOptions{ResourceVersion: "0"}) // For which a watch cache ignores a limit.
		}
	},
	"it pages by itself": func(f *source.Source) cache.ListWithContextFunc {
		return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, _, err := pager.New(f.ListWithContext).ListWithAlloc(ctx, o)
			return list, err
		}
	},
}

// TestAListFuncThatIgnoresTheLimit is asked as often as client-go asks it, but for the first watch that ends before its
// time: that question shows what the next would cost. Handlers get what client-go's get. The transport is not
// wrapped.
func TestAListFuncThatIgnoresTheLimit(t *testing.T) {
	const objects, lives = 30, 4
	for name, listFunc := range listFuncs {
		// run returns what handlers get, and how many objects were listed, in each of some lives.
		run := func(t *testing.T, launch func(t *testing.T, lw cache.ListerWatcher, r *recorder.Recorder) (stop func())) (delivered [][]string, listed []int) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t)
				for i := range objects {
					f.Put(source.ConfigMap(fmt.Sprint("o", i)))
				}
				n, list := 0, listFunc(f)
				lw := &cache.ListWatch{WatchFuncWithContext: f.WatchWithContext, ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
					obj, err := list(ctx, o)
					if err == nil {
						n += meta.LenList(obj)
					}
					return obj, err
				}}
				for life := range lives {
					r := &recorder.Recorder{}
					stop := launch(t, cache.ToListWatcherWithWatchListSemantics(lw, f), r)
					bubble.Settle()
					for range 5 {
						f.CloseWatches()
						bubble.Settle()
					}
					f.Put(source.ConfigMap(fmt.Sprint("n", life)))
					f.Remove(fmt.Sprint("n", life))
					bubble.Settle()
					stop()
					delivered, listed, n = append(delivered, sortedInitials(r.Take())), append(listed, n), 0
				}
			})
			return delivered, listed
		}
		t.Run(name, func(t *testing.T) {
			want, listed := run(t, func(t *testing.T, lw cache.ListerWatcher, r *recorder.Recorder) func() {
				informer := cache.NewSharedIndexInformer(lw, &corev1.ConfigMap{}, 0, nil)
				if _, err := informer.AddEventHandler(r); err != nil {
					t.Fatal(err)
				}
				return bubble.Start(t, informer)
			})
			path := testsupport.Path(t)
			got, ours := run(t, func(t *testing.T, lw cache.ListerWatcher, r *recorder.Recorder) func() {
				p := process.Launch(t, path, lw, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.ServeStaleAfter = 0 })
				if _, err := p.Informer.AddEventHandler(r); err != nil {
					t.Fatal(err)
				}
				return p.Run().Stop
			})
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("unexpected notifications (-client-go +got):\n%s", diff)
			}
			listed[0] += objects
			if diff := gocmp.Diff(listed, ours); diff != "" {
				t.Errorf("objects listed in each process (-client-go's +got):\n%s", diff)
			}
		})
	}
}

// sortedInitials sorts the notifications of initial lists, which have no order.
func sortedInitials(delivered []string) []string {
	n := 0
	for n < len(delivered) && strings.HasSuffix(delivered[n], "initial") {
		n++
	}
	slices.Sort(delivered[:n])
	return delivered
}

// TestAListWhoseVersionIsThatOfItsNewestObject (cozystack#1860): once that object is deleted, the list has an older
// version than the watch. A watch that ends tells nobody anything. All objects are listed once at most, to find that
// out.
func TestAListWhoseVersionIsThatOfItsNewestObject(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f, lists := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c")), 0
		lw := &cache.ListWatch{WatchFuncWithContext: f.WatchWithContext, ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			list, err := f.ListWithContext(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			newest := int64(0)
			err = meta.EachListItem(list, func(obj runtime.Object) error {
				newest = max(newest, source.VersionNumber(obj))
				return nil
			})
			list.(*corev1.List).ResourceVersion = fmt.Sprint(newest)
			lists++
			return list, err
		}}
		informer := impl.new(t, cache.ToListWatcherWithWatchListSemantics(lw, f))
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		bubble.Settle()
		f.Put(source.ConfigMap("newest"))
		f.Remove("newest")
		bubble.Settle()
		r.Take()
		lists = 0
		for range 5 {
			f.CloseWatches()
			bubble.Settle()
		}
		r.Expect(t)
		process.ExpectStore(t, informer, f)
		if lists > 1 {
			t.Errorf("%d lists", lists)
		}
	})
}

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
	}}, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps, Namespace: "ns"})
	if err != nil {
		t.Fatal(err)
	}
	api.Take()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	begun := time.Now()
	wg.Go(func() { informer.RunWithContext(ctx) })
	process.Until(informer.HasSynced)
	if !cache.IsDone(informer.CaughtUp()) {
		t.Errorf("HasSynced after %v with %d objects, while the server was heard: %q", time.Since(begun), len(informer.GetStore().List()), api.Take())
	}
	process.Until(func() bool { return cache.IsDone(informer.CaughtUp()) })
	t.Logf("caught up after %v: %q", time.Since(begun), api.Take())
	stop()
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
