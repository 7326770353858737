package model_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	clientworkqueue "k8s.io/client-go/util/workqueue"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

var (
	namesLives = flag.Int("names.lives", 20, "lives of the test of names that change hands; a long run has 60 or more")
	namesSeed  = flag.Uint64("names.seed", 1, "seed of the test of names that change hands")
)

// TestNamesThatChangeHands: durable handlers and reconcilers come, go, are refused and forgotten under the same two
// names, while objects change, and processes end and crash. Each gets, or reconciles, what it must (D2, D4),
// and no name comes back.
//
// Replay a failure with -run TestNamesThatChangeHands -names.seed N -names.lives 1.
func TestNamesThatChangeHands(t *testing.T) {
	total := namesStats{}
	defer func() { t.Logf("%+v", total) }()
	for n := range uint64(testsupport.Rounds(*namesLives, 4)) {
		bubble.Run(t, func(t *testing.T) {
			m := newNamesModel(t, *namesSeed+n)
			m.stats = &total
			total.Lives++
			for range 5 {
				for range 12 {
					m.step(true)
					m.wait()
				}
				if m.check(); t.Failed() {
					t.Logf("seed %d:\n%s", *namesSeed+n, strings.Join(m.trace, "\n"))
					return
				}
			}
		})
		if t.Failed() {
			return
		}
	}
}

// namesModel is what the users of two names must get.
type namesModel struct {
	t    *testing.T
	f    *source.Source
	path string
	p    *process.Process

	mu    sync.Mutex // Guards what follows, also of the names.
	rnd   *rand.Rand
	names map[string]*name // By kind, "h" or "r", and name.
	life  int
	calm  bool // Nobody is slow or fails.
	trace []string
	stats *namesStats
}

type namesStats struct{ Lives, Handlers, Reconcilers, Refused, Forgotten, Ends, Crashes int }

// A name is that of a durable handler or of a reconciler.
type name struct {
	registration cache.ResourceEventHandlerRegistration // Nil: nobody has it.
	used         bool                                   // Somebody had it, and it was not forgotten.

	delivered map[types.UID]int64 // What handlers got without its deletion, with the version.

	reconciled map[string]int64    // The versions that reconcilers have seen, 0 of what was gone.
	found      map[types.UID]int64 // What they have found, and not the deletion of.
}

func newName() *name {
	return &name{delivered: map[types.UID]int64{}, reconciled: map[string]int64{}, found: map[types.UID]int64{}}
}

func newNamesModel(t *testing.T, seed uint64) *namesModel {
	m := &namesModel{
		t: t, f: source.New(t, source.ConfigMap("o0"), source.ConfigMap("o1")), path: testsupport.Path(t),
		rnd: rand.New(rand.NewPCG(seed, 0)), names: map[string]*name{"hx": newName(), "hy": newName(), "rx": newName(), "ry": newName()},
	}
	m.launch()
	m.p.Run()
	return m
}

func (m *namesModel) launch() {
	m.p = process.Launch(m.t, m.path, m.f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
		o.LockTimeout, o.Logger = time.Millisecond, &testsupport.Quiet
	})
	m.p.Damaged = true
}

func (m *namesModel) intn(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rnd.IntN(n)
}

func (m *namesModel) note(words ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trace = append(m.trace, time.Now().Format("04:05.000 ")+strings.Join(words, " "))
}

func (m *namesModel) wait() {
	bubble.Advance([]time.Duration{0, 50 * time.Millisecond, 2 * time.Second, 10 * time.Second}[m.intn(4)])
}

// linger is what handlers and reconcilers do.
func (m *namesModel) linger() (fails bool) {
	m.mu.Lock()
	slow, fails := !m.calm && m.rnd.IntN(3) == 0, !m.calm && m.rnd.IntN(3) == 0
	pause := time.Duration(m.rnd.IntN(600)) * time.Millisecond
	m.mu.Unlock()
	if slow {
		time.Sleep(pause)
	}
	return fails
}

// onServer returns the objects and the newest version.
func (m *namesModel) onServer() (uids map[types.UID]bool, byKey map[string]int64, newest int64) {
	uids, byKey = map[types.UID]bool{}, map[string]int64{}
	m.f.With(func() {
		for key, obj := range m.f.Objects {
			uids[source.Meta(obj).GetUID()], byKey[key] = true, source.VersionNumber(obj)
		}
		newest = int64(m.f.RV)
	})
	return uids, byKey, newest
}

// namesHandler is a durable handler.
type namesHandler struct {
	m    *namesModel
	name string
	of   *name // If it is forgotten while the handler is in a callback, it is another one's then.
	life int
}

func (h namesHandler) OnAdd(obj any, _ bool) { h.hear(obj, false) }

func (h namesHandler) OnUpdate(_, obj any) { h.hear(obj, false) }

func (h namesHandler) OnDelete(obj any) { h.hear(obj, true) }

func (h namesHandler) hear(obj any, deleted bool) {
	if last, unknown := obj.(cache.DeletedFinalStateUnknown); unknown {
		obj = last.Obj
	}
	h.m.linger()
	h.m.note("  handler", h.name, source.Version(obj), strconv.FormatBool(deleted))
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.life != h.m.life {
		return // It has crashed.
	}
	if deleted {
		delete(h.of.delivered, source.Meta(obj).GetUID())
	} else {
		h.of.delivered[source.Meta(obj).GetUID()] = source.VersionNumber(obj)
	}
}

func (m *namesModel) addHandler(n string) {
	x := m.names["h"+n]
	registration, err := m.p.Informer.AddDurableEventHandler(n, namesHandler{m, n, x, m.life}, warmwatch.DurableOptions{})
	m.note("add handler", n, errorText(err))
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.stats.Refused++
		return
	}
	m.stats.Handlers++
	x.registration, x.used = registration, true
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (m *namesModel) addReconciler(n string) {
	life, x, store := m.life, m.names["r"+n], m.p.Informer.GetStore()
	reconcile := func(_ context.Context, req warmwatch.ReconcileRequest) (result warmwatch.ReconcileResult, err error) {
		key := req.String()
		obj, exists, err := store.GetByKey(key)
		if err != nil {
			return result, err
		}
		fails, seen := m.linger(), int64(0)
		if exists {
			seen = source.VersionNumber(obj)
		}
		m.note("  reconcile", n, key, strconv.FormatInt(seen, 10), strconv.FormatBool(fails))
		if fails {
			return result, errors.New("fails")
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if life != m.life { // It has crashed.
			return result, nil
		}
		for _, deleted := range req.Deleted {
			delete(x.found, source.Meta(deleted).GetUID())
		}
		if x.reconciled[key] = seen; exists {
			x.found[source.Meta(obj).GetUID()] = seen
		}
		return result, nil
	}
	registration, err := m.p.Informer.AddReconciler(n, reconcile, warmwatch.ReconcilerOptions{
		Workers: 1 + m.intn(2), RateLimiter: clientworkqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](5*time.Millisecond, time.Second),
	})
	m.note("add reconciler", n, errorText(err))
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.stats.Refused++
		return
	}
	m.stats.Reconcilers++
	x.registration, x.used = registration, true
}

func (m *namesModel) forget(n string) {
	err := m.p.Informer.ForgetDurable(n)
	m.note("forget", n, errorText(err))
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.stats.Forgotten++
		m.names["h"+n], m.names["r"+n] = newName(), newName()
	}
}

// step does something at random. If mayRestart is false, the process goes on.
func (m *namesModel) step(mayRestart bool) {
	n, object := []string{"x", "y"}[m.intn(2)], "o"+strconv.Itoa(m.intn(4))
	reconciles, running := m.intn(2) == 0, m.p.End != nil
	kind, add := "h", m.addHandler
	if reconciles {
		kind, add = "r", m.addReconciler
	}
	x, used := m.names[kind+n], m.names["h"+n].registration != nil || m.names["r"+n].registration != nil
	switch what := m.intn(21); {
	case what < 5:
		m.note("put", object)
		m.f.Put(source.ConfigMap(object, strconv.Itoa(m.intn(1000))))
	case what < 8:
		if _, byKey, _ := m.onServer(); byKey["ns/"+object] > 0 {
			m.note("remove", object)
			m.f.Remove(object)
		}
	case what < 14 && x.registration == nil:
		add(n)
	case what < 17 && x.registration != nil && running: // One that goes before it got anything leaves what was.
		m.note("remove", n)
		process.Remove(m.t, m.p, x.registration)
		x.registration = nil
	case what < 18 && !used:
		m.forget(n)
	case what == 18 && x.registration == nil:
		restore := testsupport.FailReads(m.t, m.path)
		add(n)
		bubble.Advance(time.Duration(m.intn(2)*m.intn(300)) * time.Millisecond)
		restore()
	case mayRestart && what > 18:
		m.restart()
	}
}

// restart ends the process, which may crash, and begins another one.
func (m *namesModel) restart() {
	bubble.Advance(3 * time.Second) // What the names must get is in the file.
	old := m.p
	if crashes := m.intn(3) == 0; crashes {
		m.note("crash")
		m.stats.Crashes++
		m.path = old.Crash()
	} else {
		m.note("stop")
		m.stats.Ends++
		old.Stop()
	}
	m.mu.Lock()
	m.life++
	for _, x := range m.names {
		x.registration = nil
	}
	m.mu.Unlock()
	old.Stop()
	m.launch()
	for range m.intn(5) {
		m.step(false)
	}
	m.note("run")
	m.p.Run()
}

// check compares what was delivered and reconciled with what had to be, once all is quiet.
func (m *namesModel) check() {
	m.setCalm(true)
	defer m.setCalm(false)
	bubble.Advance(20 * time.Minute)
	st := m.p.Informer.Status()
	for _, h := range st.Handlers {
		if !m.names["h"+h.Name].used {
			m.t.Errorf("a name that nobody has: %+v", h)
		}
	}
	for _, r := range st.Reconcilers {
		if !m.names["r"+r.Name].used {
			m.t.Errorf("work of a name that nobody has: %+v", r)
		}
	}
	uids, byKey, _ := m.onServer()
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, x := range m.names {
		switch {
		case x.registration == nil:
		case n[0] == 'r':
			for key, version := range byKey {
				if x.reconciled[key] != version {
					m.t.Errorf("reconciler %s: %s is at %d, was reconciled at %d", n, key, version, x.reconciled[key])
				}
			}
			for uid, version := range x.found {
				if !uids[uid] {
					m.t.Errorf("reconciler %s: the deletion of %s, found at %d, was not reconciled with it", n, uid, version)
				}
			}
		default:
			m.checkHandler(n, x, uids)
		}
	}
}

func (m *namesModel) checkHandler(n string, x *name, uids map[types.UID]bool) {
	m.f.With(func() {
		for key, obj := range m.f.Objects {
			if v := source.VersionNumber(obj); x.delivered[source.Meta(obj).GetUID()] != v {
				m.t.Errorf("handler %s: %s is at %d, it was notified of %d", n, key, v, x.delivered[source.Meta(obj).GetUID()])
			}
		}
	})
	for uid, version := range x.delivered {
		if !uids[uid] {
			m.t.Errorf("handler %s: it was not notified of the deletion of %s, which it got at %d", n, uid, version)
		}
	}
}

func (m *namesModel) setCalm(calm bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calm = calm
}
