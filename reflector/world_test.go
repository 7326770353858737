package reflector

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/request"
)

// world is a Resumer between a scripted server and a store in memory.
type world struct {
	t        *testing.T
	begun    time.Time
	server   *server
	store    recorder
	observed *journal
	all      *journal   // What server, store and observer saw, in one order.
	opts     Options    // May be changed before the start.
	first    *Relisting // How the first List relists. Nil: it resumes.
	hows     []Relisting
	resumer  *Resumer
	stop     func() // Idempotent.
	caughtUp atomic.Int32
}

// newWorld is of a store at rv that has the object a@3, and of a server with
// these answers. It is to be called in a bubble.
func newWorld(t *testing.T, rv string, answers ...answer) *world {
	w := newEmptyWorld(t, answers...)
	if _, err := relistOf(t, w.store.Sink, configMap("a@3")).finish(rv); err != nil {
		t.Fatal(err)
	}
	w.store.calls.take()
	w.all.take()
	return w
}

// newEmptyWorld is newWorld of a store that never had anything.
func newEmptyWorld(t *testing.T, answers ...answer) *world {
	all := &journal{}
	w := &world{
		t: t, begun: time.Now(), all: all, observed: &journal{all: all},
		server: &server{t: t, requests: &journal{all: all}, answers: answers},
		store:  recorder{newSink(t), &journal{all: all}},
	}
	w.store.informer = observer{w: w}
	w.opts = Options{
		ListerWatcher: w.server, Sink: w.store.Sink,
		Cluster: func(context.Context) *Relisting { return nil },
		Schema:  func(context.Context) (string, error) { return "", request.ErrNotSeen },
	}
	t.Cleanup(func() {
		advance(3)
		w.server.check()
	})
	return w
}

// open makes the Resumer, for a test that calls it directly.
func (w *world) open() *Resumer {
	w.resumer = NewResumer(w.opts)
	if w.first != nil {
		w.resumer.ForceRelist(*w.first)
	}
	w.stop = w.resumer.Stop
	w.t.Cleanup(func() { w.stop() })
	return w.resumer
}

// run makes the Resumer and runs a Reflector on it.
func (w *world) run() *world {
	r := w.open()
	reflector := cache.NewReflectorWithOptions(r, &corev1.ConfigMap{}, w.store, cache.ReflectorOptions{Name: "test"})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		reflector.RunWithContext(ctx)
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		r.Stop()
		synctest.Wait()
	})
	advance(3) // A watch takes a moment, see server.
	return w
}

// list calls List directly, and expects that it succeeds.
func (w *world) list() (rv string) {
	w.t.Helper()
	obj, err := w.resumer.List(metav1.ListOptions{})
	if err != nil {
		w.t.Error(err)
		return ""
	}
	list := obj.(*metav1.List)
	if len(list.Items) > 0 {
		w.t.Errorf("List returned %d items", len(list.Items))
	}
	return list.ResourceVersion
}

// lastHow is how the last relist was begun.
func (w *world) lastHow() Relisting {
	if len(w.hows) == 0 {
		return Relisting{Cause: "None"}
	}
	return w.hows[len(w.hows)-1]
}

// elapsed is the time since the beginning of the test.
func (w *world) elapsed() time.Duration { return time.Since(w.begun) }

// observer writes down what a Resumer calls.
type observer struct {
	Informer
	w *world
}

func (o observer) RelistBegun(rewriting bool) {
	call := "begin"
	if rewriting {
		call += " rewrite"
	}
	o.w.store.calls.note("%s", call)
}

func (o observer) RelistEnded(complete bool, _ error) bool {
	if !complete {
		o.w.store.calls.note("abort")
	}
	return true
}

func (o observer) Relisted(Relisted) {
	o.w.store.calls.note("finish %s", o.w.store.record.ResourceVersion)
}
func (o observer) Refused(error) {}

func (o observer) Resuming(rv string) { o.w.observed.note("resuming at %s", rv) }
func (o observer) Relisting(how Relisting) {
	o.w.hows = append(o.w.hows, how)
	o.w.observed.note("relisting: %s", how.Cause)
}
func (o observer) Live()     { o.w.observed.note("live") }
func (o observer) CaughtUp() { o.w.caughtUp.Add(1) }
func (o observer) Contact()  { o.w.observed.note("contact") }
func (o observer) Disconnected(err error) {
	switch {
	case err == nil:
		o.w.observed.note("disconnected")
	case isExpired(err):
		o.w.observed.note("disconnected: expired")
	default:
		o.w.observed.note("disconnected: %v", err)
	}
}

// bubble runs a test by a clock of its own.
func bubble(t *testing.T, test func(*testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// advance lets time pass, and everything that it makes happen.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// firstBackoff is as long as client-go's Reflector waits at most, the first
// time, before it lists again; leastBackoff is how long it waits at least.
const (
	leastBackoff = 800 * time.Millisecond
	firstBackoff = 1600 * time.Millisecond
)
