package life_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/metrics"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/warmwatch/warmwatch/informers"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
)

// TestADynamicFactoryServesWhileTheServerHangs, also by an index that is added before.
func TestADynamicFactoryServesWhileTheServerHangs(t *testing.T) {
	for _, hangs := range []time.Duration{0, 9 * time.Second, time.Hour} {
		t.Run(hangs.String(), func(t *testing.T) { bubble.Run(t, func(t *testing.T) { serveDynamic(t, hangs) }) })
	}
}

func serveDynamic(t *testing.T, hangs time.Duration) {
	all := func(any) ([]string, error) { return []string{"v"}, nil }
	path := testsupport.Path(t)
	for life := range 2 {
		c := open(t, path)
		g := &gateway{cluster: func(r *http.Request, _ int) (*http.Response, error) {
			return reply(r, http.StatusOK, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"one"}}`), nil
		}}
		if life > 0 {
			g.hangs = time.Now().Add(hangs)
		}
		client := dynamic.NewForConfigOrDie(&rest.Config{Host: "http://server", Transport: c.WrapTransport(g), QPS: -1})
		factory := informers.NewFilteredDynamicSharedInformerFactory(c, client, 0, "ns", nil)
		informer := factory.ForResource(process.ConfigMaps).Informer()
		if err := informer.AddIndexers(cache.Indexers{"first": all}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		factory.Start(ctx.Done())
		bubble.Advance(8 * time.Second) // The objects are found, and not yet served.
		late := life > 0 && !informer.HasSynced()
		if late {
			if err := informer.AddIndexers(cache.Indexers{"late": all}); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(index string) {
			if keys, err := informer.GetIndexer().IndexKeys(index, "v"); err != nil || !slices.Equal(keys, []string{"ns/a"}) {
				t.Errorf("life %d: index %q has %q: %v", life, index, keys, err)
			}
		}
		bubble.Advance(12 * time.Second)
		if keys := informer.GetStore().ListKeys(); !informer.HasSynced() || !slices.Equal(keys, []string{"ns/a"}) {
			t.Errorf("life %d: synced %v, %q", life, informer.HasSynced(), keys)
		}
		expect("first")
		bubble.Advance(hangs)
		bubble.Settle()
		expect("first")
		if late {
			expect("late")
		}
		cancel()
		factory.Shutdown()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// tokens is a rate limiter that counts.
type tokens struct {
	flowcontrol.RateLimiter
	n atomic.Int32
}

func (l *tokens) Wait(context.Context) error {
	l.n.Add(1)
	return nil
}

// TestTheTokensThatAnInformerTakes of its client's rate limit: none. What is our own takes none, as watches do. A first
// start lists, the next one asks the question.
func TestTheTokensThatAnInformerTakes(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		path := testsupport.Path(t)
		for life := range 2 {
			limiter := &tokens{}
			c := open(t, path)
			informer := of(c, "http://server", tells("one"), limiter)
			stop := bubble.Start(t, informer)
			bubble.Settle()
			process.ExpectOne(t, informer)
			if n, st := limiter.n.Load(), informer.Status(); n != 0 || st.Relists != 1-life || st.Resumes != life {
				t.Errorf("life %d: %d tokens, %+v", life, n, st)
			}
			stop()
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestLogicalClustersOfOneServerShareNothing: they differ in the path before /api only.
func TestLogicalClustersOfOneServerShareNothing(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		path := testsupport.Path(t)
		for life := range 2 {
			c := open(t, path)
			var stops []func()
			for _, workspace := range []string{"one", "two", ""} {
				g := &gateway{cluster: func(r *http.Request, _ int) (*http.Response, error) { return reply(r, http.StatusNotFound, ""), nil }}
				informer := of(c, strings.TrimSuffix("http://server/clusters/"+workspace, "/clusters/"), g, nil)
				stops = append(stops, bubble.Start(t, informer))
				bubble.Settle()
				process.ExpectOne(t, informer)
				from := []string{"server", "disk"}[life]
				if st := informer.Status(); st.StartedFrom != from || st.Err != nil {
					t.Errorf("workspace %q, process %d: %+v", workspace, life, st)
				}
				for _, list := range g.lists {
					if !strings.Contains(list, workspace) {
						t.Errorf("workspace %q: %s", workspace, list)
					}
				}
			}
			if n := len(c.Status().Informers); n != 3 {
				t.Errorf("%d identities", n)
			}
			for _, stop := range stops {
				stop()
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// An unlimited server ignores the limit of a list, as aggregated ones do. Its watches last a minute.
type unlimited struct {
	gateway *gateway
	lists   atomic.Int32
}

func (u *unlimited) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	switch {
	case strings.HasSuffix(r.URL.Path, "/configmaps") && query.Get("watch") != "":
		body, end := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = end.Close() })
		time.AfterFunc(time.Minute, func() { _ = end.Close() })
		resp := reply(r, http.StatusOK, "")
		resp.Body = body
		return resp, nil
	case strings.HasSuffix(r.URL.Path, "/configmaps"):
		u.lists.Add(1)
		return reply(r, http.StatusOK, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[`+
			`{"metadata":{"namespace":"ns","name":"a","uid":"1","resourceVersion":"3"}},{"metadata":{"namespace":"ns","name":"b","uid":"2","resourceVersion":"4"}}]}`), nil
	}
	return u.gateway.RoundTrip(r)
}

// TestAServerThatIgnoresTheLimitIsAskedOnce: each answer has all objects.
func TestAServerThatIgnoresTheLimitIsAskedOnce(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		path := testsupport.Path(t)
		for life := range 2 {
			u := &unlimited{gateway: tells("one")}
			c := open(t, path)
			informer := of(c, "http://server", u, nil)
			stop := bubble.Start(t, informer)
			bubble.Advance(20 * time.Minute)
			if n := int(u.lists.Load()); n > 2-life { // The first list of a cold start, and one question.
				t.Errorf("life %d: %d lists of all objects, %+v", life, n, informer.Status())
			}
			stop()
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// results counts what client-go reports as rest_client_requests_total.
type results struct {
	mu sync.Mutex
	n  map[string]int
}

func (r *results) Increment(_ context.Context, code, method, _ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n[method+" "+code]++
}

// TestAStartIsNoErrorOfTheClient: the request that is looked at, and not sent, does not count as one that has failed.
func TestAStartIsNoErrorOfTheClient(t *testing.T) {
	r, before := &results{n: map[string]int{}}, metrics.RequestResult
	metrics.RequestResult = r
	defer func() { metrics.RequestResult = before }()
	bubble.Run(t, func(t *testing.T) {
		path := testsupport.Path(t)
		for range 2 {
			c := open(t, path)
			informer := of(c, "http://server", tells("one"), nil)
			stop := bubble.Start(t, informer)
			bubble.Settle()
			process.ExpectOne(t, informer)
			stop()
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	if n := r.n["GET <error>"]; n > 0 || r.n["GET 200"] == 0 {
		t.Errorf("%d errors: %v", n, r.n)
	}
}
