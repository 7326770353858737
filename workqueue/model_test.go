package workqueue

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

// TestAQueueBehavesLikeClientGos makes random use of a queue, over restarts and crashes. It answers
// as client-go's does, and the file has the items, of the last commit, that were added and for which
// Done was not called since (D5).
func TestAQueueBehavesLikeClientGos(t *testing.T) {
	rnd := testsupport.Rand(t)
	for range 12 {
		seed := rnd.Int63()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{t: t, rnd: rand.New(rand.NewSource(seed)), path: testsupport.Path(t)}
				m.open()
				for range 300 {
					m.step()
				}
				m.shutDown()
			})
		})
	}
}

type model struct {
	t    *testing.T
	rnd  *rand.Rand
	path string
	db   *persist.DB
	s    *Store
	q    *Queue[string]
	// reference is client-go's. All is done to both.
	reference workqueue.TypedRateLimitingInterface[string]

	dirty, processing map[string]bool
	delayed           map[string]time.Time
	stored            map[string]bool // By the last commit.
}

func limiter() workqueue.TypedRateLimiter[string] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute)
}

func (m *model) open() {
	m.s, m.db = openStore(m.t, m.path)
	m.begin()
}

// begin makes a queue, which begins with what is stored.
func (m *model) begin() {
	m.q = newQueue(m.t, m.s, Options[string]{RateLimiter: limiter()})
	m.reference = workqueue.NewTypedRateLimitingQueue(limiter())
	m.t.Cleanup(m.reference.ShutDown)
	m.dirty, m.processing, m.delayed = map[string]bool{}, map[string]bool{}, map[string]time.Time{}
	for _, item := range slices.Sorted(maps.Keys(m.stored)) {
		m.reference.Add(item)
		m.dirty[item] = true
	}
	m.compare()
}

// needed are the items that a commit stores.
func (m *model) needed() map[string]bool {
	needed := maps.Clone(m.dirty)
	maps.Copy(needed, m.processing)
	for item := range m.delayed {
		needed[item] = true
	}
	return needed
}

func (m *model) both(do func(workqueue.TypedRateLimitingInterface[string])) {
	do(m.q)
	do(m.reference)
	synctest.Wait()
}

func (m *model) step() {
	item := string(rune('a' + m.rnd.Intn(8)))
	switch m.rnd.Intn(20) {
	case 0, 1, 2, 3:
		m.both(func(q workqueue.TypedRateLimitingInterface[string]) { q.Add(item) })
		m.dirty[item] = true
	case 4, 5:
		d := time.Duration(m.rnd.Intn(3)-1) * 10 * time.Second
		m.both(func(q workqueue.TypedRateLimitingInterface[string]) { q.AddAfter(item, d) })
		m.addAfter(item, d)
	case 6, 7:
		d := min(time.Second<<m.reference.NumRequeues(item), time.Minute)
		m.both(func(q workqueue.TypedRateLimitingInterface[string]) { q.AddRateLimited(item) })
		m.addAfter(item, d)
	case 8:
		m.both(func(q workqueue.TypedRateLimitingInterface[string]) { q.Forget(item) })
	case 9, 10, 11, 12:
		m.get()
	case 13, 14, 15:
		for item := range m.processing {
			m.both(func(q workqueue.TypedRateLimitingInterface[string]) { q.Done(item) })
			delete(m.processing, item)
			break
		}
	case 16:
		time.Sleep(time.Duration(m.rnd.Intn(15)) * time.Second)
		synctest.Wait()
		m.fire()
	case 17, 18:
		flush(m.t, m.db)
		m.stored = m.needed()
	case 19:
		m.restart()
	}
	m.compare()
}

func (m *model) addAfter(item string, d time.Duration) {
	due := time.Now().Add(d)
	if before, waits := m.delayed[item]; d <= 0 {
		m.dirty[item] = true
	} else if !waits || due.Before(before) {
		m.delayed[item] = due
	}
}

// fire is what client-go does with items whose time has come.
func (m *model) fire() {
	for item, due := range m.delayed {
		if !due.After(time.Now()) {
			delete(m.delayed, item)
			m.dirty[item] = true
		}
	}
}

func (m *model) get() {
	if m.reference.Len() == 0 {
		return
	}
	got, _ := m.q.Get()
	want, _ := m.reference.Get()
	if got != want {
		m.t.Errorf("Get returned %q, client-go's %q", got, want)
	}
	delete(m.dirty, got)
	m.processing[got] = true
}

func (m *model) compare() {
	m.t.Helper()
	if got, want := m.q.Len(), m.reference.Len(); got != want {
		m.t.Fatalf("Len is %d, client-go's %d", got, want)
	}
	for c := 'a'; c < 'i'; c++ {
		if got, want := m.q.NumRequeues(string(c)), m.reference.NumRequeues(string(c)); got != want {
			m.t.Fatalf("NumRequeues of %c is %d, client-go's %d", c, got, want)
		}
	}
	if d := cmp.Diff(slices.Sorted(maps.Keys(m.needed())), slices.Sorted(maps.Keys(m.q.keys))); d != "" {
		m.t.Fatalf("D5: other keys are kept (-want +got):\n%s", d)
	}
	if st := m.s.Status(); len(st) != 1 || st[0] != (Status{Name: "model", Keys: len(m.needed())}) {
		m.t.Fatalf("status: %+v", st)
	}
}

// restart goes on from the file as it is now, after a crash, or as it is after the end.
func (m *model) restart() {
	switch m.rnd.Intn(3) {
	case 0:
		m.path = crashed(m.t, m.path)
		m.q.ShutDown()
		m.reference.ShutDown()
		m.open()
	case 1: // Another queue in the same process.
		m.q.Close()
		m.reference.ShutDown()
		m.stored = m.needed()
		m.begin()
	case 2:
		m.shutDown()
	}
	m.stored = m.needed()
	flush(m.t, m.db)
}

// shutDown ends the queue as a controller does, while handlers still add items, and workers that
// have failed add theirs again.
func (m *model) shutDown() {
	m.q.ShutDown()
	m.reference.ShutDown()
	for item := range m.delayed { // client-go forgets them.
		m.dirty[item] = true
	}
	for item := range m.processing {
		switch m.rnd.Intn(3) {
		case 0:
			m.q.AddRateLimited(item)
			m.dirty[item] = true
		case 1:
			m.q.AddAfter(item, 0)
			m.dirty[item] = true
		}
		m.q.Done(item)
	}
	clear(m.processing)
	m.q.Add("late")
	m.dirty["late"] = true
	m.stored = m.needed()
	m.q.Close()
	m.begin()
}
