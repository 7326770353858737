package storm_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport/believer"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

var (
	stormRounds = flag.Int("storm.rounds", 6, "rounds of the storm test; a long run has 10 or more")
	stormBulk   = flag.Bool("storm.bulk", false, "let the storm test have large objects in some rounds, so that a process can be killed within a relist: slow")
	stormSeed   = flag.Uint64("storm.seed", 1, "seed of the storm test; 0 takes one from the clock")
)

// TestStorm runs informers, over HTTP, on a group of API servers that answers late, in part, with
// errors, or behind the others, loses its history, and changes its schema, while objects change between
// any two requests. Processes are killed, and some begin while another one has the file. After each
// storm the cache and the durable handler have what the servers have.
//
// Replay a failure with -run TestStorm -storm.seed N -storm.rounds 1.
func TestStorm(t *testing.T) {
	seed := *stormSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	asked, rounds := map[string]int{}, testsupport.Rounds(*stormRounds, 2)
	for n := range uint64(rounds) {
		synctest.Test(t, func(t *testing.T) {
			m := newStorm(t, seed+n)
			for range 12 {
				if m.life(); t.Failed() {
					t.Logf("replay with -run TestStorm -storm.seed %d -storm.rounds 1", seed+n)
					break
				}
			}
			m.server.mu.Lock() // Requests that were given up may still be answered.
			defer m.server.mu.Unlock()
			for what, count := range m.server.asked {
				asked[what] += count
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Log(asked)
	for _, what := range []string{"list", "metadata", "one", "probe", "expired", "cut"} {
		if rounds >= 6 && asked[what] == 0 {
			t.Errorf("no request was %q: %v", what, asked)
		}
	}
}

// storm is one round.
type storm struct {
	t         *testing.T
	rng       *rand.Rand
	server    *wildServer
	dir, path string
	lives     int
	protobuf  bool   // The clients ask for it.
	deferred  bool   // The informers are of NewInformer.
	namespace string // That is listed.
	durable   *believer.Believer
}

const (
	stormEvery   = 2 * time.Hour
	stormObjects = 160 // Enough to be compared by version.
)

func newStorm(t *testing.T, seed uint64) *storm {
	rng, dir := rand.New(rand.NewPCG(seed, 1)), t.TempDir()
	m := &storm{
		t: t, rng: rng, dir: dir, path: filepath.Join(dir, "cache-0.db"), durable: believer.New(t, "durable"),
		protobuf: rng.IntN(2) == 0, deferred: rng.IntN(2) == 0,
	}
	if rng.IntN(2) == 0 {
		m.namespace = "ns"
	}
	m.server = newWildServer(t, rand.New(rand.NewPCG(seed, 2)), m.namespace, stormObjects)
	return m
}

// stormLife is one process.
type stormLife struct {
	*storm
	cache     *warmwatch.Cache
	informer  *warmwatch.SharedIndexInformer
	transport *http.Transport
	handler   *believer.Handler
	dead      chan struct{} // Closed when it is killed, and what it has left was copied.
	to        string
	cancel    func()
	done      chan struct{} // Run has returned.

	mu        sync.Mutex
	countdown int // At 1, the next commit is the last.
}

// life runs one process, to its end in order or until it is killed.
func (m *storm) life() {
	l := m.launch()
	if m.rng.IntN(3) > 0 {
		l.killAfter(1 + m.rng.IntN(60))
	}
	m.server.setStorm(true)
	killed := l.endure()
	m.server.setStorm(false)
	if !killed {
		l.killAfter(-1)
		killed = l.isDead(0)
	}
	if !killed && m.rng.IntN(4) > 0 {
		l.quiet()
	}
	l.end()
	if !killed {
		return
	}
	if err := os.Remove(m.path); err != nil {
		m.t.Error(err)
	}
	m.path = l.to
}

func (m *storm) launch() *stormLife {
	m.lives++
	l := &stormLife{
		storm: m, dead: make(chan struct{}), done: make(chan struct{}),
		to: filepath.Join(m.dir, fmt.Sprintf("cache-%d.db", m.lives)),
	}
	var err error
	l.cache, err = warmwatch.Open(m.t.Context(), m.path, warmwatch.Options{
		LockTimeout: time.Millisecond, Logger: &testsupport.Quiet, FullRelistEvery: stormEvery,
		CommitInterval: time.Duration(1+m.rng.IntN(1000)) * time.Millisecond,
		MemoryBudget:   int64(m.rng.IntN(3)-1) * 20000, MaxPendingBytes: int64(m.rng.IntN(2)),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	testsupport.EachCommit(m.t, func() { go l.committed() }) // The DB does not wait for it.
	config, transport := m.server.config()
	l.transport = transport
	if m.protobuf {
		config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+",application/json"
	}
	config.Wrap(l.cache.WrapTransport)
	client := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(m.namespace)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = stormSelector
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = stormSelector
			return client.Watch(ctx, o)
		},
	}
	l.informer = l.newInformer(lw)
	l.handler = m.durable.Handler(believer.Options{})
	if _, err := l.informer.AddDurableEventHandler(m.durable.Name, l.handler, warmwatch.DurableOptions{}); err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	l.cancel = cancel
	go func() { defer close(l.done); l.informer.RunWithContext(ctx) }()
	return l
}

func (l *stormLife) end() {
	l.cancel()
	<-l.done
	if err := l.cache.Close(); err != nil {
		l.t.Errorf("close: %v", err)
	}
	l.transport.CloseIdleConnections()
}

func (l *stormLife) newInformer(lw cache.ListerWatcher) *warmwatch.SharedIndexInformer {
	if l.deferred {
		return l.cache.NewInformer(lw, &corev1.ConfigMap{}, 0, nil).(*warmwatch.SharedIndexInformer)
	}
	s, err := l.cache.NewSharedIndexInformer(lw, &corev1.ConfigMap{}, warmwatch.InformerOptions{
		Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: l.namespace, LabelSelector: stormSelector,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

// killAfter has the process killed after so many commits; negative: it lives.
func (l *stormLife) killAfter(commits int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.countdown = commits
}

// committed is called at each commit.
func (l *stormLife) committed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.countdown--; l.countdown != 0 {
		return
	}
	_, unlock := l.handler.Die()
	defer unlock()
	testsupport.CopyFile(l.t, l.path, l.to)
	close(l.dead)
}

// isDead waits for a while, and reports whether the process was killed.
func (l *stormLife) isDead(wait time.Duration) bool {
	select {
	case <-time.After(wait): // Virtual time.
	case <-l.dead:
	}
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

// endure lets a while pass with changes and accidents, and reports whether the process was killed.
func (l *stormLife) endure() (killed bool) {
	for range 5 + l.rng.IntN(80) {
		if l.isDead(time.Duration(l.rng.IntN(2000)) * time.Millisecond) {
			return true
		}
		switch l.rng.IntN(11) {
		case 0:
			l.server.change((*wildServer).loseHistoryLocked)
		case 1:
			l.server.change((*wildServer).endWatchesLocked)
		case 2, 3, 4:
			l.server.change((*wildServer).changeObjectsLocked)
		}
	}
	return false
}

// quiet waits until everything was delivered, and compares. What the schema has changed of an object at
// the same version may be found by a full relist only.
func (l *stormLife) quiet() {
	l.compare(false, 20*time.Minute)
	if !l.t.Failed() && l.rng.IntN(3) == 0 {
		l.compare(true, 3*stormEvery)
	}
}

func (l *stormLife) compare(withSchema bool, patience time.Duration) {
	var want, cached, believed map[types.UID]string
	for began, pause := time.Now(), time.Second; time.Since(began) < patience; pause += pause / 8 {
		want, cached, believed = l.server.contents(withSchema), map[types.UID]string{}, map[types.UID]string{}
		for _, obj := range l.informer.GetStore().List() {
			cm := obj.(*corev1.ConfigMap)
			cached[cm.UID] = contentOf(cm, withSchema)
		}
		for uid, cm := range l.durable.Objects() {
			believed[uid] = contentOf(cm, withSchema)
		}
		if maps.Equal(want, cached) && maps.Equal(want, believed) {
			return
		}
		time.Sleep(pause) // Virtual time.
	}
	l.t.Errorf("after quiet (status %+v), with what the schema says %v:\nI2: cache differs from the server (-want +got):\n%s\n"+
		"D2: what the handler believes differs from the server (-want +got):\n%s",
		l.informer.Status(), withSchema, cmp.Diff(want, cached), cmp.Diff(want, believed))
}
