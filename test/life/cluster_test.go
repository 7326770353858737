package life_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// TestAClusterThatIsKnownAtLastIsStoredAtOnce, not with the next event.
func TestAClusterThatIsKnownAtLastIsStoredAtOnce(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := newHistory(t)
		path := process.Filled(t, f, nil)
		p := process.Launch(t, path, f, process.IsCluster("one", nil)).Run()
		bubble.Settle() // Nothing happens.
		path = p.Crash()
		p.Stop()
		f.TakeRequests()
		other := source.New(t)
		other.RV = 200
		other.Put(source.ConfigMap("a", "of two"))
		p = process.Launch(t, path, other, process.IsCluster("two", nil)).Run()
		bubble.Settle()
		expectHistory(p, other, warmwatch.CauseOtherCluster)
		if requests := other.TakeRequests(); !slices.Contains(requests, "LIST limit=500") { // Of any version: theirs are not ours.
			t.Errorf("asked for %q", requests)
		}
	})
}

func TestAnotherClusterIsNotBelieved(t *testing.T) {
	cluster := func(id string, err error) process.Setup {
		return func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
			o.ClusterID = func(context.Context) (string, error) { return id, err }
		}
	}
	for _, c := range []struct {
		name      string
		second    process.Setup
		delivered []string
		relist    int
	}{
		{"the same cluster", cluster("one", nil), []string{"add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3"}, 0},
		{"another cluster", cluster("two", nil), []string{"add ns/a@1 initial", "add ns/b@2 initial", "lost ns/b@2", "update ns/a@1→1"}, 1},
		{"a cluster that does not tell", cluster("", apierrors.NewForbidden(process.ConfigMaps.GroupResource(), "", nil)), []string{"add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3"}, 0},
		{"nobody asks", nil, []string{"add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b"))
				path := process.Filled(t, f, cluster("one", nil))
				f.Put(source.ConfigMap("a", "y"))
				other := f
				if c.name == "another cluster" {
					// It counts as the first one does.
					other = source.New(t, source.ConfigMap("a", "of two"))
					other.RV = 100
				}
				other.Hold = make(chan struct{})
				p := process.Launch(t, path, other, c.second)
				r, _ := recorder.Add(t, p.Informer)
				p.Run()
				bubble.Settle()
				close(other.Hold)
				bubble.Settle()
				got := r.Take()
				slices.Sort(got[min(2, len(got)):])
				if diff := gocmp.Diff(c.delivered, got); diff != "" {
					t.Errorf("unexpected notifications (-want +got):\n%s", diff)
				}
				process.ExpectStore(t, p.Informer, other)
				if st := p.Informer.Status(); st.Relists != c.relist {
					t.Errorf("status: %+v", st)
				}
			})
		})
	}
}

// TestTheClusterIsAskedUntilItAnswers (A3), before each watch. Until then the objects are used: no answer proves
// nothing.
func TestTheClusterIsAskedUntilItAnswers(t *testing.T) {
	for name, refusal := range map[string]error{
		"it cannot be reached": source.ErrUnreachable,
		"it is forbidden":      apierrors.NewForbidden(process.ConfigMaps.GroupResource(), "", nil),
		"it has no identity":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"))
				path := process.Filled(t, f, process.IsCluster("one", nil))
				var asked atomic.Int32
				var known atomic.Bool
				p := process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
					o.ServeStaleAfter = 0
					o.ClusterID = func(context.Context) (string, error) {
						if asked.Add(1); known.Load() {
							return "one", nil
						}
						return "", refusal
					}
				}).Run()
				bubble.Settle()
				if st := p.Informer.Status(); !p.Informer.HasSynced() || st.Relists != 0 || st.Resumes != 1 || asked.Load() != 1 {
					t.Errorf("asked %d times, %+v", asked.Load(), st)
				}
				f.CloseWatches()
				bubble.Settle()
				if n := asked.Load(); n != 2 {
					t.Errorf("asked %d times", n)
				}
				known.Store(true)
				for range 2 {
					f.CloseWatches()
					bubble.Settle()
				}
				if n := asked.Load(); n != 3 {
					t.Errorf("asked %d times, although it is known", n)
				}
			})
		})
	}
}

// TestAnExpiredTokenIsNoAnswer: until the server tells which cluster it is, the stored objects
// are served, in the next process too.
func TestAnExpiredTokenIsNoAnswer(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		path := process.Filled(t, f, process.IsCluster("one", nil))
		for range 2 {
			p := process.Launch(t, path, f, process.IsCluster("", apierrors.NewUnauthorized("expired"))).Run()
			bubble.Advance(time.Minute)
			if !p.Informer.HasSynced() || len(p.Informer.GetStore().List()) != 2 {
				t.Errorf("synced: %v, %d objects", p.Informer.HasSynced(), len(p.Informer.GetStore().List()))
			}
			p.Stop()
		}
		f.TakeRequests()
		p := process.Launch(t, path, f, process.IsCluster("one", nil)).Run()
		bubble.Settle()
		if st := p.Informer.Status(); st.Resumes != 1 || st.Relists != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// A gateway answers lists of ConfigMaps with ns/a, and keeps watches open, in memory, so that it
// works in a bubble. What it answers to the question for the namespace kube-system is up to the test.
type gateway struct {
	cluster func(r *http.Request, asked int) (*http.Response, error)
	object  string    // Its name, a if empty.
	hangs   time.Time // Until then it answers nothing,
	refuses time.Time // until then everything with 403,
	putsOff time.Time // and until then with 503.

	mu       sync.Mutex
	refusals int // How many more requests it answers with 403.
	asked    int
	lists    []string
}

func (g *gateway) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	switch {
	case time.Now().Before(g.hangs):
		<-r.Context().Done()
		return nil, r.Context().Err()
	case time.Now().Before(g.putsOff):
		return reply(r, http.StatusServiceUnavailable, ""), nil
	case time.Now().Before(g.refuses) || g.refusesNext():
		return reply(r, http.StatusForbidden, ""), nil
	case strings.HasSuffix(r.URL.Path, "/namespaces/kube-system"):
		g.mu.Lock()
		g.asked++
		n := g.asked
		g.mu.Unlock()
		return g.cluster(r, n)
	case strings.HasSuffix(r.URL.Path, "/openapi/v3"):
		return reply(r, http.StatusForbidden, ""), nil
	case query.Get("watch") != "":
		body, end := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = end.Close() })
		resp := reply(r, http.StatusOK, "")
		resp.Body = body
		return resp, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if query.Get("limit") != "1" || query.Get("resourceVersion") != "" { // Else it is only asked whether there is an answer.
		g.lists = append(g.lists, r.URL.Path)
	}
	return reply(r, http.StatusOK, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"5"},`+
		`"items":[{"metadata":{"namespace":"ns","name":"`+cmp.Or(g.object, "a")+`","uid":"1","resourceVersion":"4"}}]}`), nil
}

func (g *gateway) refusesNext() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refusals--
	return g.refusals >= 0
}

func reply(r *http.Request, code int, body string) *http.Response {
	return &http.Response{
		StatusCode: code, Status: fmt.Sprint(code), Request: r, ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
	}
}

// tells returns a gateway whose cluster has this UID.
func tells(uid string) *gateway {
	return &gateway{cluster: func(r *http.Request, _ int) (*http.Response, error) {
		return reply(r, http.StatusOK, `{"metadata":{"uid":"`+uid+`"}}`), nil
	}}
}

func open(t *testing.T, path string) *warmwatch.Cache {
	c, err := warmwatch.Open(t.Context(), path, warmwatch.Options{ServeStaleAfter: -1, Logger: &testsupport.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// of returns an informer of ConfigMaps in a Cache.
func of(c *warmwatch.Cache, host string, g http.RoundTripper, limiter flowcontrol.RateLimiter) *warmwatch.SharedIndexInformer {
	config := &rest.Config{Host: host, Transport: g, QPS: -1, RateLimiter: limiter}
	config.Wrap(c.WrapTransport)
	lw := cache.NewFilteredListWatchFromClient(kubernetes.NewForConfigOrDie(config).CoreV1().RESTClient(), "configmaps", "ns", process.NoTweak)
	return c.NewInformer(lw, &corev1.ConfigMap{}, 0, cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc}).(*warmwatch.SharedIndexInformer)
}

// TestAServerThatRefusesEverythingForAMomentStillIsItsCluster: an API server that starts refuses all before
// it knows the roles, until it is ready, which may be between any two requests. A gateway may have put all off
// before that, for however long.
func TestAServerThatRefusesEverythingForAMomentStillIsItsCluster(t *testing.T) {
	cases := map[string]func(o *warmwatch.Options, g *gateway, refuses bool){
		"asked by the transport": func(*warmwatch.Options, *gateway, bool) {},
		"put off before that": func(_ *warmwatch.Options, g *gateway, refuses bool) {
			if refuses {
				g.putsOff = time.Now().Add(40 * time.Second)
				g.refuses = g.putsOff.Add(25 * time.Second) // Longer than the Reflector's backoff at that time.
			}
		},
		"put off, and the question for the cluster once more": func(_ *warmwatch.Options, g *gateway, refuses bool) {
			if refuses {
				g.refuses, g.putsOff = time.Time{}, time.Now().Add(40*time.Second)
				tells := g.cluster
				g.cluster = func(r *http.Request, asked int) (*http.Response, error) {
					if asked == 1 {
						return reply(r, http.StatusServiceUnavailable, ""), nil
					}
					return tells(r, asked)
				}
			}
		},
		"asked by ClusterID": func(o *warmwatch.Options, g *gateway, _ bool) {
			o.ClusterID = warmwatch.KubeSystemUID(kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://server", Transport: g, QPS: -1}).CoreV1())
		},
	}
	for n := range 8 {
		cases[fmt.Sprintf("the first %d requests", n)] = func(_ *warmwatch.Options, g *gateway, refuses bool) {
			if refuses {
				g.refuses, g.refusals = time.Time{}, n
			}
		}
	}
	for name, set := range cases {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				path := testsupport.Path(t)
				for i := range 3 {
					g := &gateway{cluster: func(r *http.Request, _ int) (*http.Response, error) {
						return reply(r, http.StatusOK, `{"metadata":{"uid":"one"}}`), nil
					}}
					if i == 1 {
						g.refuses = time.Now().Add(5 * time.Second)
					}
					o := warmwatch.Options{ServeStaleAfter: -1, Logger: &testsupport.Quiet}
					set(&o, g, i == 1)
					c, err := warmwatch.Open(t.Context(), path, o)
					if err != nil {
						t.Fatal(err)
					}
					informer := of(c, "http://server", g, nil)
					stop := bubble.Start(t, informer)
					bubble.Advance(10 * time.Minute) // The Reflector's backoff is up to a minute by then.
					process.ExpectOne(t, informer)
					// Where it is the watch that is refused, a list follows, as in client-go.
					if st := informer.Status(); i > 0 && (st.StartedFrom != "disk" || st.Resumes+st.Relists != 1 || i > 1 && st.Resumes != 1 || st.Phase != warmwatch.PhaseLive) {
						t.Errorf("start %d from %q: %d resumes, %d relists (%s), %s", i, st.StartedFrom, st.Resumes, st.Relists, st.Cause, st.Phase)
					}
					stop()
					if err := c.Close(); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

// A refuser answers all requests with a Status of this code, as an API server does.
type refuser struct{ *apierrors.StatusError }

func (f refuser) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := json.Marshal(f.Status())
	return reply(r, int(f.Status().Code), string(body)), err
}

// TestAServerThatRefusesEverythingProvesNothing, however long it does: this process and the next serve the file, and
// then resume. The handler of watch errors gets what client-go's gets.
func TestAServerThatRefusesEverythingProvesNothing(t *testing.T) {
	resource := process.ConfigMaps.GroupResource()
	for name, refusal := range map[string]*apierrors.StatusError{
		"400": apierrors.NewBadRequest("no"),
		"401": apierrors.NewUnauthorized("no"),
		"403": apierrors.NewForbidden(resource, "", nil),
		"404": apierrors.NewNotFound(resource, ""),
		"405": apierrors.NewMethodNotSupported(resource, "list"),
		"410": apierrors.NewResourceExpired("no"),
		"503": apierrors.NewServiceUnavailable("no"),
	} {
		refused := func(t *testing.T, refused time.Duration, st warmwatch.InformerStatus, objects int) {
			t.Helper()
			switch {
			case objects == 0 || st.StartedFrom != "disk":
				t.Errorf("%d objects, %+v", objects, st)
			case refused == 0 && (st.Resumes != 1 || st.Relists != 0):
				t.Errorf("afterwards: %+v", st)
			}
		}
		t.Run(name+", and the transport is wrapped", func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				path := testsupport.Path(t)
				run := func(g http.RoundTripper, d time.Duration) (st warmwatch.InformerStatus, objects int, failed error) {
					c := open(t, path)
					informer := of(c, "http://server", g, nil)
					var handled atomic.Pointer[error]
					if err := informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { handled.Store(&err) }); err != nil {
						t.Fatal(err)
					}
					stop := bubble.Start(t, informer)
					bubble.Advance(d)
					st, objects = informer.Status(), len(informer.GetStore().List())
					stop()
					if err := c.Close(); err != nil {
						t.Error(err)
					}
					if err := handled.Load(); err != nil {
						failed = *err
					}
					return st, objects, failed
				}
				if _, _, err := run(tells("one"), 2*time.Minute); err != nil {
					t.Error(err)
				}
				for range 2 {
					st, objects, got := run(refuser{refusal}, time.Hour)
					refused(t, time.Hour, st, objects)
					if name == "410" { // client-go's asks again without a pause.
						continue
					}
					if want := refusedClientGo(t, refuser{refusal}); got == nil || apierrors.ReasonForError(got) != apierrors.ReasonForError(want) {
						t.Errorf("the handler of watch errors gets %v, client-go's %v", got, want)
					}
				}
				st, objects, _ := run(tells("one"), 2*time.Minute)
				refused(t, 0, st, objects)
			})
		})
		t.Run(name+", and ClusterID is set", func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"))
				path := process.Filled(t, f, process.IsCluster("one", nil))
				f.SetDown(refusal)
				for range 2 {
					p := process.Launch(t, path, f, process.IsCluster("", refusal)).Run()
					bubble.Advance(time.Hour)
					refused(t, time.Hour, p.Informer.Status(), len(p.Informer.GetStore().List()))
					p.Stop()
				}
				f.SetDown(nil)
				p := process.Launch(t, path, f, process.IsCluster("one", nil)).Run()
				bubble.Settle()
				refused(t, 0, p.Informer.Status(), len(p.Informer.GetStore().List()))
			})
		})
	}
}

// refusedClientGo returns what the handler of watch errors of client-go's own informer gets.
func refusedClientGo(t *testing.T, refuser http.RoundTripper) (failed error) {
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://server", Transport: refuser, QPS: -1})
	informer := cache.NewSharedIndexInformer(cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", "ns", process.NoTweak), &corev1.ConfigMap{}, 0, nil)
	if err := informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { failed = err }); err != nil {
		t.Fatal(err)
	}
	stop := bubble.Start(t, informer)
	bubble.Advance(2 * time.Minute)
	stop()
	return failed
}
