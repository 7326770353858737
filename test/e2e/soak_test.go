package e2e

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
	"github.com/warmwatch/warmwatch/test/e2e/link"
)

var soakFor = flag.Duration("links.for", 0, "how long TestLinks goes on; a round that has begun is finished")

// soaked are the resources that an agent keeps, and the kinds of their objects.
var soaked = []struct {
	schema.GroupVersionResource
	kind string
}{{configMaps, "ConfigMap"}, {secrets, "Secret"}, {widgets, "Widget"}}

// soakHandlers are the handlers of each of its informers. A late one is added after the
// others, as controller-runtime does.
var soakHandlers = []agent.Handler{
	{Name: "durable", Durable: true, Tell: true, TellInitial: true},
	{Name: "plain", Tell: true, TellInitial: true},
	{Name: "late", Tell: true, TellInitial: true, Late: 2 * time.Second},
}

// soakMemory is what no agent may exceed.
const soakMemory = 512 << 20

// TestLinks keeps an agent with three informers behind a link that is slow, cut,
// silent or down, while objects change, the API server is restarted, etcd is
// compacted or put back, and the agent is killed. Whenever that stops for a
// moment, the stores, the indices and what every handler got equal the server,
// and no deletion was lost: of a durable handler in all lives, of another in this one.
func TestLinks(t *testing.T) {
	t.Parallel()
	s := newSoak(t)
	begin := time.Now()
	defer func() { s.report(t, time.Since(begin)) }() // Also if it ends early.
	for ; s.round < len(soakRounds) || time.Since(begin) < *soakFor; s.round++ {
		r := soakRound{link: s.pickLink(), event: s.pickEvent()}
		if s.round < len(soakRounds) {
			r = soakRounds[s.round]
		}
		s.play(t, r)
	}
	s.checkMemory(t)
	s.agent.end(t)
	checkFile(t, s.cacheFile())
}

// soakRound is a fault of the link, and something that happens meanwhile.
type soakRound struct{ link, event string }

// soakRounds are always played, whatever the time.
var soakRounds = []soakRound{
	{"cut", "kill and restart"},
	{"slow", "rewind"},
	{"flaps", "restore"},
}

func (s *soak) pickLink() string {
	return []string{"none", "latency", "slow", "cut", "cut", "flaps", "flaps", "silence"}[s.rng.IntN(8)]
}

func (s *soak) pickEvent() string {
	return []string{
		"none", "none", "kill", "kill", "kill and restart", "restart", "restart", "compact", "kill and compact",
		"rewind", "restore", "kill and rewind", "kill and restore",
	}[s.rng.IntN(13)]
}

type soak struct {
	cp        *controlplane.ControlPlane
	client    dynamic.Interface
	link      *link.Link
	namespace string
	dir       string
	rng       *rand.Rand
	churn     *churn
	agent     *agentProcess
	life      int
	round     int

	chronicles map[string]map[string]*chronicle // By resource and handler.
	counts     map[string]int
	peakBytes  int64
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	seed := newSeed(t)
	cp := borrow(t)
	client := newHTTPClient(t, cp.Config(), func(cfg *rest.Config) (dynamic.Interface, error) { return dynamic.NewForConfig(cfg) })
	createWidgets(t, client)
	l, err := link.To(cp.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Down)
	s := &soak{
		cp: cp, client: client, link: l, namespace: newNamespace(t, newClient(t, cp.Config())), dir: t.TempDir(), rng: newRand(seed),
		chronicles: map[string]map[string]*chronicle{}, counts: map[string]int{},
	}
	for _, resource := range soaked {
		s.chronicles[resource.Resource] = map[string]*chronicle{}
		for _, h := range soakHandlers {
			s.chronicles[resource.Resource][h.Name] = newChronicle(resource.Resource, h.Name)
		}
	}
	s.churn = newChurn(client, s.namespace, seed)
	s.churn.make(t, 2*churnNames)
	s.begin(t)
	s.compare(t)
	return s
}

func (s *soak) begin(t *testing.T) {
	t.Helper()
	s.life++
	s.eachChronicle((*chronicle).begin)
	var specs []agent.Spec
	for _, resource := range soaked {
		spec := specOf(resource.GroupVersionResource, resource.kind)
		spec.Kubeconfig, spec.Dial, spec.Namespace, spec.File = s.cp.Kubeconfig(), s.link.Addr(), s.namespace, s.cacheFile()
		spec.Sums, spec.Handlers = true, soakHandlers
		specs = append(specs, spec)
	}
	s.agent = startAgent(t, specs...)
}

func (s *soak) cacheFile() string { return filepath.Join(s.dir, "cache.db") }

// play plays a round, and compares afterwards.
func (s *soak) play(t *testing.T, r soakRound) {
	t.Helper()
	t.Logf("round %d, life %d: link %s, event %s", s.round, s.life, r.link, r.event)
	s.counts["link "+r.link]++
	s.counts["event "+r.event]++
	putBack := strings.Contains(r.event, "rewind") || strings.Contains(r.event, "restore")
	if putBack {
		s.must(t, s.cp.SnapshotEtcd())
		defer s.eachChronicle(func(c *chronicle) { c.putBack = false })
	}
	s.churn.begin(t)
	s.fault(t, r.link)
	s.pause(3 * time.Second)
	killed := strings.HasPrefix(r.event, "kill")
	if killed {
		s.kill(t)
	}
	s.pause(2 * time.Second)
	s.churn.end(t) // While the server is away nothing can be changed.
	if putBack {
		s.eachChronicle(func(c *chronicle) {
			c.read(s.agent)
			c.putBack = true
		})
	}
	s.happen(t, r.event)
	if killed {
		s.begin(t)
	}
	if !putBack { // After that, versions are used again only when all have seen that they went back.
		s.churn.begin(t)
	}
	s.pause(4 * time.Second)
	if r.link == "flaps" {
		for range 3 {
			s.link.Down()
			s.pause(time.Second)
			s.must(t, s.link.Up())
			s.pause(time.Second)
		}
	}
	s.must(t, s.link.Heal())
	s.churn.end(t)
	s.compare(t)
}

func (s *soak) eachChronicle(do func(*chronicle)) {
	for _, handlers := range s.chronicles {
		for _, c := range handlers {
			do(c)
		}
	}
}

// background outlives the context of a test that has failed: what was stopped is
// to be started again.
func (s *soak) background(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

func (s *soak) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pause is at most d long.
func (s *soak) pause(d time.Duration) { time.Sleep(d/4 + time.Duration(s.rng.Int64N(int64(d*3/4)))) }

func (s *soak) fault(t *testing.T, name string) {
	t.Helper()
	switch name {
	case "latency":
		s.must(t, s.link.Latency(50+s.rng.IntN(400)))
	case "slow": // 128 kbit/s.
		s.must(t, s.link.Bandwidth(16))
	case "cut": // In lists, and in watches.
		s.must(t, s.link.CutAfter(4_000+s.rng.IntN(60_000)))
	case "silence":
		s.must(t, s.link.Silence())
	}
}

func (s *soak) happen(t *testing.T, event string) {
	t.Helper()
	switch ctx := s.background(t); {
	case strings.HasSuffix(event, "restart"):
		s.must(t, s.cp.RestartAPIServer(ctx))
	case strings.HasSuffix(event, "compact"):
		s.must(t, s.cp.CompactEtcd(ctx))
	case strings.HasSuffix(event, "restore"):
		s.must(t, s.cp.RestoreEtcdBumped(ctx))
	case strings.HasSuffix(event, "rewind"):
		s.must(t, s.cp.RestoreEtcd(ctx))
	}
}

// kill ends the agent with kill -9.
func (s *soak) kill(t *testing.T) {
	t.Helper()
	s.checkMemory(t)
	s.agent.kill(t)
	s.eachChronicle(func(c *chronicle) { c.read(s.agent) })
	s.counts["kills"]++
}

// raced reports whether the race detector is on.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

func (s *soak) checkMemory(t *testing.T) {
	t.Helper()
	peak := agent.PeakResident(s.agent.PID())
	s.peakBytes = max(s.peakBytes, peak)
	limit := int64(soakMemory)
	if raced() {
		limit *= 6 // The race detector has memory of its own for what the program has.
	}
	if peak > limit {
		t.Errorf("life %d took %d MiB", s.life, peak>>20)
	}
}

// compare waits until all is as on the server, which does not change now.
func (s *soak) compare(t *testing.T) {
	t.Helper()
	want := map[string]map[string]string{}
	for _, resource := range soaked {
		want[resource.Resource] = s.server(t, resource.GroupVersionResource)
	}
	var contents []agent.Contents
	eventually(t, "the agent's stores to equal the server", func() error {
		contents = s.agent.contents(t)
		for _, c := range contents {
			if err := difference(want[c.Resource], c.Objects); err != nil {
				return fmt.Errorf("%s: %w\n%+v", c.Resource, err, *c.Status)
			}
		}
		return nil
	})
	for _, state := range contents {
		name := state.Resource
		if state.Status.Error != "" || state.IndexErr != "" {
			t.Errorf("%s: %s; index: %s", name, state.Status.Error, state.IndexErr)
		}
		s.counts["objects compared"] += len(state.Objects)
		for handler, c := range s.chronicles[name] {
			eventually(t, name+", "+handler+": what it got equals the server", func() error {
				c.read(s.agent)
				return difference(want[name], c.known)
			})
			if lost := c.lost(want[name]); len(lost) > 0 {
				s.counts["deletions lost, "+handler] += len(lost)
				t.Errorf("%s, %s: %d deletions were not delivered: %v", name, handler, len(lost), lost[:min(5, len(lost))])
			}
			for _, p := range c.problems[:min(5, len(c.problems))] {
				t.Error(p)
			}
			c.problems = nil
		}
	}
	s.counts["comparisons"]++
}

// server is what the server has of a resource, by key.
func (s *soak) server(t *testing.T, resource schema.GroupVersionResource) map[string]string {
	t.Helper()
	lw, err := agent.ListWatch(s.cp.Config(), resource, s.namespace)
	if err != nil {
		t.Fatal(err)
	}
	list, err := cache.ToListerWatcherWithContext(lw).ListWithContext(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	contents := map[string]string{}
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		contents[keyOf(obj)] = agent.ContentOf(obj, true)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return contents
}

// report prints the counts.
func (s *soak) report(t *testing.T, took time.Duration) {
	t.Helper()
	made, deleted, anew := s.churn.counts()
	t.Logf("%v, %d rounds, %d lives of the agent, which took %d MiB at most", took.Round(time.Second), s.round, s.life, s.peakBytes>>20)
	t.Logf("%d changes, %d of them deletions, %d made anew at once", made, deleted, anew)
	for _, h := range soakHandlers {
		delivered, deletions, replaced := 0, 0, 0
		for _, handlers := range s.chronicles {
			c := handlers[h.Name]
			delivered, deletions, replaced = delivered+c.delivered, deletions+c.deletions, replaced+c.replaced
		}
		t.Logf("%-8s %7d notifications, %6d deletions, %4d delivered as another uid of the key, %d lost",
			h.Name, delivered, deletions, replaced, s.counts["deletions lost, "+h.Name])
	}
	for _, name := range slices.Sorted(maps.Keys(s.counts)) {
		t.Logf("%-32s %6d", name, s.counts[name])
	}
}
