package model_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport/believer"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/apiserver"
)

var (
	modelCrashes = flag.Int("model.crashes", 250, "crashes of the model test; a long run has 1000 or more")
	modelBulk    = flag.Bool("model.bulk", false, "let the model test have large objects in some lives, so that a crash can come within a relist: slow")
	modelSeed    = flag.Uint64("model.seed", 1, "seed of the model test; 0 takes one from the clock")
)

// TestModel makes random changes to a server, restarts and crashes of an
// informer, and compares with a plain map. A crash is a copy of the file at some
// moment after a commit began, with all memory forgotten.
//
// Replay a failure with -run TestModel -model.seed N -model.crashes M.
func TestModel(t *testing.T) {
	seed := *modelSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	panics := utilruntime.PanicHandlers
	utilruntime.PanicHandlers = []func(context.Context, any){diesOfPanic}
	defer func() { utilruntime.PanicHandlers = panics }()
	defer func(chunkObjects int) { indexer.ChunkObjects = chunkObjects }(indexer.ChunkObjects)
	indexer.ChunkObjects = 3 // So that an initial list of a few objects is read at several moments.
	crashes := testsupport.Rounds(*modelCrashes, 50)
	t.Logf("replay with -run TestModel -model.seed %d -model.crashes %d", seed, crashes)
	const perLife = 25
	total := modelStats{}
	for n := 0; n*perLife < crashes && !t.Failed(); n++ {
		lifeSeed := seed + uint64(n)
		synctest.Test(t, func(t *testing.T) {
			m := newModel(t, lifeSeed)
			for range min(perLife, crashes-n*perLife) {
				if m.session(); t.Failed() {
					t.Logf("life %d of seed %d", n, seed)
					return
				}
			}
			total.add(m.stats)
		})
	}
	t.Logf("%+v", total)
	if !t.Failed() && (total.Resumes == 0 || total.Relists == 0 || total.Deletions == 0 || total.Redelivered == 0 || total.Damaged == 0 ||
		crashes >= 1000 && (total.Skipped == 0 || total.OtherType == 0 || total.DeadLinks == 0)) {
		t.Errorf("the test did not reach what it is for: %+v", total)
	}
}

// modelNames is how many names the objects have.
const modelNames = 12

type modelStats struct {
	Sessions, Crashes, Resumes, Relists, Events, Deletions, Redelivered, Damaged int
	Panics, Skipped                                                              int
	// OtherType are the processes that found objects of another Go type, DeadLinks those whose link was dead for a while.
	OtherType, DeadLinks int
}

func (s *modelStats) add(o modelStats) {
	s.Sessions += o.Sessions
	s.Crashes += o.Crashes
	s.Resumes += o.Resumes
	s.Relists += o.Relists
	s.Events += o.Events
	s.Deletions += o.Deletions
	s.Redelivered += o.Redelivered
	s.Damaged += o.Damaged
	s.Panics += o.Panics
	s.Skipped += o.Skipped
	s.OtherType += o.OtherType
	s.DeadLinks += o.DeadLinks
}

type model struct {
	t      *testing.T
	rng    *rand.Rand
	dir    string
	path   string
	server *apiserver.Server
	stats  modelStats
	// lossy: files are damaged, and too much waits for handlers. They say what they know.
	lossy bool
	// damaged: the file was, and perhaps nothing was written since.
	damaged bool
	// The durable handler late comes at any time of a session.
	durable, late, plain *believer.Believer
	shadows              *shadows
	transforms           *transforms // Nil: there is none.
}

func newModel(t *testing.T, seed uint64) *model {
	rng := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	m := &model{
		t: t, rng: rng, dir: dir, path: filepath.Join(dir, "cache-0.db"),
		server: apiserver.New(apiserver.Options{
			Rand: rand.New(rand.NewPCG(seed, 2)), Names: modelNames, Fill: fillModel(*modelBulk && seed%8 == 3), SelectAgain: true,
			PageDelay: 200 * time.Millisecond,
		}),
		durable: believer.New(t, "model"), late: believer.New(t, "late"), plain: believer.New(t, "plain"),
		shadows: newShadows(t, seed), lossy: seed%2 == 0,
	}
	if seed%3 == 0 {
		m.transforms = &transforms{}
	}
	m.server.Advance(1) // No server is at version 0.
	return m
}

// bulk makes objects so large that a relist, which writes 2 MiB at once, writes a few of them: a crash can come in
// between.
var bulk = strings.Repeat("x", 800<<10)

// fillModel returns what gives an object its content.
func fillModel(large bool) func(*rand.Rand, apiserver.Object) {
	return func(rng *rand.Rand, obj apiserver.Object) {
		data := map[string]string{"color": fmt.Sprint("c", rng.IntN(4)), "rv": obj.GetResourceVersion()}
		if large && rng.IntN(3) == 0 {
			data["bulk"] = bulk
		}
		obj.(*corev1.ConfigMap).Data = data
	}
}

// session runs the informer once, from the file to a crash or a stop.
func (m *model) session() {
	m.choosePoison()
	l := m.launch()
	if m.rng.IntN(3) == 0 {
		m.stats.DeadLinks++
		time.Sleep(time.Duration(m.rng.IntN(3000)) * time.Millisecond) // Virtual time.
		l.link.die(time.Duration(m.rng.IntN(150)) * time.Second)
		m.server.Advance(m.rng.IntN(5))
	}
	m.disturb(l)
	if !l.crash.isArmed() {
		m.quiet(l)
	}
	l.crash.arm()
	l.crash.await()
	st := l.informer.Status()
	m.stats.Resumes += st.Resumes
	m.stats.Relists += st.Relists
	for _, h := range st.Handlers {
		m.stats.Skipped += int(h.Skipped)
	}
	l.end()
	m.afterwards(l, l.crash.to)
}

// disturb lets a while pass with changes and accidents.
func (m *model) disturb(l *life) {
	crash := l.crash
	for range m.rng.IntN(40) {
		switch m.rng.IntN(18) {
		case 0:
			m.server.Disconnect()
		case 1:
			m.server.Compact()
			if m.rng.IntN(2) == 0 {
				m.server.Disconnect()
			}
		case 2:
			m.server.Bookmark()
		case 3:
			m.server.FailPages(m.rng.IntN(3))
		case 4:
			time.Sleep(time.Duration(m.rng.IntN(2000)) * time.Millisecond) // Virtual time.
		case 5:
			crash.arm()
		case 6:
			l.addLate()
		case 7:
			l.addAgain()
		default:
			m.server.Advance(1)
			if m.rng.IntN(4) == 0 {
				time.Sleep(time.Duration(m.rng.IntN(20)) * time.Millisecond)
			}
		}
	}
	if m.rng.IntN(2) == 0 {
		crash.arm()
	}
}

// quiet waits until everything was delivered, and compares (A5, D2).
func (m *model) quiet(l *life) {
	l.addLate()
	l.durable.SetSlow(nil)
	l.late.SetSlow(nil)
	l.work.hurry()
	var diff string
	for range 600 {
		time.Sleep(time.Second) // Virtual time.
		if l.crash.isArmed() {  // A handler has panicked.
			return
		}
		if diff = m.compare(l); diff == "" {
			l.checkIndices()
			return
		}
	}
	m.t.Errorf("after quiet (status %+v):\n%s", l.informer.Status(), diff)
}

func (m *model) compare(l *life) string {
	want, uids, byKey := map[string]string{}, map[types.UID]bool{}, map[string]believer.Belief{}
	for key, obj := range m.server.Objects() {
		want[key], uids[obj.GetUID()] = obj.GetResourceVersion(), true
		rv, err := strconv.Atoi(obj.GetResourceVersion())
		if err != nil {
			m.t.Error(err)
		}
		byKey[key] = believer.Belief{UID: obj.GetUID(), Key: key, RV: rv}
	}
	got := map[string]string{}
	for _, obj := range l.informer.GetStore().List() {
		cm := l.configMap(obj)
		got[cm.Namespace+"/"+cm.Name] = cm.ResourceVersion
	}
	if d := cmp.Diff(want, got); d != "" {
		return "A5: cache differs from the server (-want +got):\n" + d
	}
	for _, b := range []*believer.Believer{m.durable, m.late, m.plain} {
		if b == m.plain && m.lossy { // D6: it may miss deletions, and cannot say what it knows.
			continue
		}
		if d := b.Compare(byKey); d != "" {
			return d
		}
	}
	if m.lossy { // Deleted objects may be lost, their keys are not.
		m.shadows.forgetObjects()
	}
	return m.shadows.compare(want, uids)
}

func (l *life) byColor(obj any) ([]string, error) {
	return []string{l.configMap(obj).Data["color"]}, nil
}

func (l *life) checkIndices() {
	l.checkIndex(l.informer.GetIndexer())
}

// checkIndex compares the index with the objects.
func (l *life) checkIndex(ix cache.Indexer) {
	m, want := l.m, map[string][]string{}
	for _, obj := range ix.List() {
		cm := l.configMap(obj)
		want[cm.Data["color"]] = append(want[cm.Data["color"]], cm.Namespace+"/"+cm.Name)
	}
	got := map[string][]string{}
	for _, v := range ix.ListIndexFuncValues("color") {
		keys, err := ix.IndexKeys("color", v)
		if err != nil {
			m.t.Error(err)
		}
		got[v] = keys
	}
	for _, keys := range want {
		slices.Sort(keys)
	}
	if d := cmp.Diff(want, got); d != "" {
		m.t.Errorf("A5: index differs from the objects (-want +got):\n%s", d)
	}
}

// afterwards looks at what a crash has left, and goes on with it.
func (m *model) afterwards(l *life, path string) {
	if old := m.path; old != path {
		m.path = path
		if err := os.Remove(old); err != nil {
			m.t.Fatal(err)
		}
	}
	m.stats.Crashes++
	left := m.inspect(m.path, l.crash.delivered)
	m.t.Logf("the file is at version %d", left.rv)
	m.checkTypes(left)
	for _, b := range []*believer.Believer{m.durable, m.late, m.plain} {
		counts := b.TakeCounts()
		m.stats.Events, m.stats.Deletions = m.stats.Events+counts.Events, m.stats.Deletions+counts.Deletions
		m.stats.Redelivered += counts.Redelivered
		m.stats.Panics += counts.Panics
	}
	m.plain.Forget()
	m.shadows.restart(left.rv)
	if m.lossy && m.rng.IntN(4) == 0 && !m.damaged { // Two at once are not our problem.
		m.damage()
	}
}
