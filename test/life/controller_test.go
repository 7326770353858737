package life_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// A wire is a link to a source that speaks HTTP, in memory and in virtual time. All answers share it.
type wire struct {
	f              *source.Source
	latency        time.Duration // Each way.
	bytesPerSecond int           // 0: no bound.
	turn           chan struct{} // Whose bytes are on the link. A mutex would stop the time of the bubble.

	mu      sync.Mutex
	stalled time.Time // Nothing comes through before.
}

// stall lets nothing through for a while.
func (l *wire) stall(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stalled = time.Now().Add(d)
}

// RoundTrip implements [http.RoundTripper].
func (l *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(2 * l.latency)
	if !strings.HasSuffix(r.URL.Path, "/configmaps") {
		return reply(r, http.StatusForbidden, ""), nil
	}
	query := r.URL.Query()
	limit, _ := strconv.ParseInt(query.Get("limit"), 10, 64)
	o := metav1.ListOptions{ResourceVersion: query.Get("resourceVersion"), Limit: limit, Continue: query.Get("continue")}
	body, in := io.Pipe()
	resp := reply(r, http.StatusOK, "")
	resp.Body = body
	context.AfterFunc(r.Context(), func() { _ = body.CloseWithError(context.Canceled) })
	if query.Get("watch") == "" {
		list, err := l.f.ListWithContext(r.Context(), o)
		if err != nil {
			return nil, err
		}
		if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
			withoutContents(list)
		}
		go func() { in.CloseWithError(l.send(in, list, "ConfigMapList")) }()
		return resp, nil
	}
	w, err := l.f.WatchWithContext(r.Context(), o)
	if err != nil {
		return nil, err
	}
	go func() {
		defer w.Stop()
		for e := range w.ResultChan() {
			if l.send(in, map[string]any{"type": e.Type, "object": named(e)}, "") != nil {
				return
			}
		}
		_ = in.Close()
	}()
	return resp, nil
}

func withoutContents(list runtime.Object) {
	items := list.(*corev1.List).Items
	for i := range items {
		items[i] = runtime.RawExtension{Object: &metav1.PartialObjectMetadata{ObjectMeta: *items[i].Object.(*corev1.ConfigMap).ObjectMeta.DeepCopy()}}
	}
}

// named returns the object of an event, with its kind.
func named(e watch.Event) runtime.Object {
	if cm, ok := e.Object.(*corev1.ConfigMap); ok {
		cm.APIVersion, cm.Kind = "v1", "ConfigMap"
	}
	return e.Object
}

// send sends a value, piece by piece.
func (l *wire) send(to io.Writer, v any, kind string) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if kind != "" {
		text = []byte(strings.Replace(string(text), "{", `{"kind":"`+kind+`","apiVersion":"v1",`, 1))
	}
	const piece = 1024
	for len(text) > 0 {
		n := min(piece, len(text))
		l.turn <- struct{}{}
		l.mu.Lock()
		stalled := l.stalled
		l.mu.Unlock()
		time.Sleep(time.Until(stalled))
		if l.bytesPerSecond > 0 {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(l.bytesPerSecond))
		}
		<-l.turn
		if _, err := to.Write(text[:n]); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// controller makes a child for each parent that has none in its cache.
type controller struct {
	f      *source.Source
	reader cache.Indexer

	mu   sync.Mutex
	made map[string]bool // By this process.
	dead bool
}

const parentLabel = "parent"

// OnAdd makes the child of a new parent when that is in the file.
func (c *controller) OnAdd(obj any, initial bool) {
	m := source.Meta(obj)
	if m.GetLabels()[parentLabel] != "" || m.GetName() == "big" {
		return
	}
	children, err := c.reader.ByIndex(parentLabel, m.GetName())
	if err != nil || len(children) > 0 {
		return
	}
	if !initial {
		time.Sleep(1500 * time.Millisecond)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made[m.GetName()] || c.dead {
		return
	}
	c.made[m.GetName()] = true
	child := source.ConfigMap(fmt.Sprintf("child-%s-%d", m.GetName(), rand.Int64()))
	child.Labels = map[string]string{parentLabel: m.GetName()}
	c.f.Put(child)
}

func (c *controller) OnUpdate(any, any) {}

func (c *controller) OnDelete(any) {}

// TestAControllerThatIsKilledMakesNoChildTwice (A6): it is killed between the making of a child and the commit of its
// event. With ServeStaleAfter -1 it acts on what the file has.
func TestAControllerThatIsKilledMakesNoChildTwice(t *testing.T) {
	const kills = 8
	for name, c := range map[string]struct {
		latency        time.Duration
		bytesPerSecond int
		big            int // Bytes of an object that changes before the child is made.
		stall          time.Duration
		stale          time.Duration
	}{
		"next to the server":                     {},
		"50 ms away":                             {latency: 50 * time.Millisecond},
		"over 1 Mbit/s, with an object of 1 MiB": {latency: 10 * time.Millisecond, bytesPerSecond: 125_000, big: 1 << 20},
		"whose link stalls":                      {stall: 40 * time.Millisecond},
		"50 ms away, served from disk":           {latency: 50 * time.Millisecond, stale: -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := source.New(t)
				path := testsupport.Path(t)
				rng := rand.New(rand.NewPCG(1, 2))
				for kill := range kills {
					l := &wire{f: f, turn: make(chan struct{}, 1), latency: c.latency, bytesPerSecond: c.bytesPerSecond}
					path = liveAndBeKilled(t, l, path, c.stale, func(synced func()) {
						bubble.Advance(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
						if c.stall > 0 {
							l.stall(c.stall)
						}
						synced()
						f.Put(source.ConfigMap(fmt.Sprintf("parent-%d", kill)))
						bubble.Advance(1400*time.Millisecond + l.latency)
						if c.big > 0 { // It comes before the child.
							f.Put(source.ConfigMap("big", strings.Repeat(strconv.Itoa(kill%10), c.big)))
						}
						bubble.Advance(200*time.Millisecond + l.latency)
					})
				}
				f.CloseWatches()
				bubble.Settle() // What is on the wire ends.
				twice := 0
				children := map[string]int{}
				for _, obj := range f.Objects {
					if parent := source.Meta(obj).GetLabels()[parentLabel]; parent != "" {
						if children[parent]++; children[parent] > 1 {
							twice++
						}
					}
				}
				if len(children) < kills-1 {
					t.Errorf("%d parents have a child", len(children))
				}
				if exact := c.stale == 0; exact != (twice == 0) {
					t.Errorf("%d children were made twice", twice)
				}
			})
		})
	}
}

// liveAndBeKilled runs the controller, and returns what is left of the file when it is killed after living.
func liveAndBeKilled(t *testing.T, l *wire, path string, stale time.Duration, living func(synced func())) (left string) {
	opened, err := warmwatch.Open(t.Context(), path, warmwatch.Options{ServeStaleAfter: stale, Logger: &testsupport.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{Host: "http://server", Transport: l, QPS: -1}
	config.Wrap(opened.WrapTransport)
	client := kubernetes.NewForConfigOrDie(config).CoreV1().RESTClient()
	lw := cache.NewFilteredListWatchFromClient(client, "configmaps", "ns", process.NoTweak)
	informer := opened.NewInformer(lw, &corev1.ConfigMap{}, 0, cache.Indexers{parentLabel: func(obj any) ([]string, error) {
		return []string{source.Meta(obj).GetLabels()[parentLabel]}, nil
	}})
	acting := &controller{f: l.f, reader: informer.GetIndexer(), made: map[string]bool{}}
	if _, err := informer.AddEventHandler(acting); err != nil {
		t.Fatal(err)
	}
	stop := bubble.Start(t, informer)
	living(func() {
		for waited := time.Duration(0); !informer.HasSynced(); waited += time.Second {
			if bubble.Advance(time.Second); waited > time.Minute {
				t.Fatal("not synced after a minute")
			}
		}
		bubble.Advance(2 * time.Second) // The handler has been called for all there is.
	})
	left = testsupport.Path(t)
	testsupport.CopyFile(t, path, left)
	acting.mu.Lock()
	acting.dead = true
	acting.mu.Unlock()
	stop()
	if err := opened.Close(); err != nil {
		t.Error(err)
	}
	return left
}
