package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
)

var killsFlag = flag.Int("kills", 8, "how often TestKill and TestKillAReconciler kill the agent")

// TestKill kills a real process in the middle of a stream of changes, again and
// again, and compares what its next life knows with the server.
func TestKill(t *testing.T) {
	t.Parallel()
	seed := newSeed(t)
	cp := borrow(t)
	client := newClient(t, cp.Config())
	k := &killer{
		cp: cp, client: client, namespace: newNamespace(t, client), dir: t.TempDir(), rng: newRand(seed),
	}
	k.changer = newChanger(client, k.namespace, 60, seed)
	k.durable = story{handler: "durable", known: knowledge{}}
	k.changer.make(t, 400)
	for life := 1; life <= *killsFlag; life++ {
		k.live(t, life)
	}
	k.begin(t)
	k.compare(t)
	k.agent.end(t)
	checkFile(t, k.cacheFile())
	t.Logf("%d changes, %d notifications, %d of them delivered again; %d relists, %d resumes", k.changer.made.Load(),
		k.durable.total, k.durable.again, k.relists, k.resumes)
	if k.relists == 0 || k.resumes == 0 {
		t.Error("there were no relists, or no resumes: change how agents are killed")
	}
}

// killer keeps an agent alive, more or less.
type killer struct {
	cp        *controlplane.ControlPlane
	client    kubernetes.Interface
	namespace string
	dir       string
	rng       *rand.Rand
	changer   *changer
	durable   story
	life      int
	agent     *agentProcess

	relists, resumes int
}

func (k *killer) cacheFile() string { return filepath.Join(k.dir, "cache.db") }

// live is one life of the agent, which ends with kill -9, and what happens until
// the next one.
func (k *killer) live(t *testing.T, life int) {
	t.Helper()
	// The first lives are long: they must have delivered everything.
	early := life > 2 && k.rng.IntN(3) == 0
	down, historyLost := k.rng.IntN(150), life%4 == 0 || k.rng.IntN(20) == 0
	t.Logf("life %d: killed early: %t, %d changes while down, history lost: %t", life, early, down, historyLost)
	k.changer.begin(t)
	k.begin(t)
	if early {
		// Before, while or after it comes up.
		time.Sleep(time.Duration(k.rng.IntN(600)) * time.Millisecond)
	} else {
		k.changer.await(t, k.rng.IntN(100))
		k.changer.end(t)
		k.compare(t)
		k.changer.begin(t)
		k.changer.await(t, 100+k.rng.IntN(200))
	}
	k.agent.kill(t)
	if down > 0 {
		k.changer.await(t, down)
	}
	k.changer.end(t)
	k.durable.read(t, k.agent, life)
	if historyLost {
		if err := k.cp.RestartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func (k *killer) begin(t *testing.T) {
	t.Helper()
	k.life++
	k.durable.seen = 0
	spec := specOf(configMaps, "ConfigMap")
	spec.Kubeconfig, spec.Namespace, spec.File = k.cp.Kubeconfig(), k.namespace, k.cacheFile()
	spec.Handlers = []agent.Handler{
		{Name: "durable", Durable: true, Tell: true, TellInitial: true, Slow: true},
		{Name: "plain", Tell: true, TellInitial: true, Slow: true},
	}
	k.agent = startAgent(t, spec)
}

// compare waits until the agent's cache, and what its handlers got, equal
// the server, which does not change now.
func (k *killer) compare(t *testing.T) {
	t.Helper()
	list, err := k.client.CoreV1().ConfigMaps(k.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := versionsOfList(t, list)
	var d agent.Contents
	eventually(t, "the agent's cache to equal the server", func() error {
		d = k.agent.contents(t)[0]
		return difference(want, d.Objects)
	})
	if d.Status.Error != "" || d.IndexErr != "" {
		t.Errorf("life %d: status: %s; index: %s", k.life, d.Status.Error, d.IndexErr)
	}
	k.relists += d.Status.Relists
	k.resumes += d.Status.Resumes
	eventually(t, "the durable handler to know what the server has", func() error {
		k.durable.read(t, k.agent, k.life)
		return difference(want, k.durable.known)
	})
	// A plain handler begins anew in each life.
	plain := story{handler: "plain", known: knowledge{}, plain: true}
	eventually(t, "the plain handler to know what the server has", func() error {
		plain.read(t, k.agent, k.life)
		return difference(want, plain.known)
	})
}

// story is what a handler got. That of the durable handler goes on over all
// lives: a life begins with what was delivered but not stored as acknowledged, in the
// same order and the same words, and goes on from there.
type story struct {
	handler string
	plain   bool

	seen         int // Events of this life's agent.
	life         int
	known        knowledge
	deliveries   []delivery // All, without what was delivered again.
	again, total int
	// places are the indices in deliveries at which the life may be: what comes next is what
	// came there, or is new behind the last one. A life may begin anywhere.
	places []int
}

// read reads on. All that is new was delivered in the given life.
func (s *story) read(t *testing.T, a *agentProcess, life int) {
	t.Helper()
	all := a.Events()
	for _, e := range all[s.seen:] {
		if e.Handler != s.handler {
			continue
		}
		if err := s.hear(deliveryOf(e), life); err != nil {
			t.Errorf("life %d: notification %d: %v", life, s.total, err)
		}
	}
	s.seen = len(all)
}

func (s *story) hear(e delivery, life int) error {
	s.total++
	if s.plain {
		return s.known.learn(e)
	}
	if life != s.life {
		s.life = life
		if e.Kind == "initial" && life <= 2 { // The first life ended before its cursor was stored.
			s.deliveries, s.known = nil, knowledge{}
		}
		s.places = s.places[:0]
		for i := range len(s.deliveries) + 1 {
			s.places = append(s.places, i)
		}
	}
	if again := s.followed(e); len(again) > 0 {
		s.places = again
		s.again++
		return nil
	}
	if !slices.Contains(s.places, len(s.deliveries)) {
		return fmt.Errorf("delivered %v, and before, at this place, %v", e, s.deliveries[s.places[0]])
	}
	s.deliveries = append(s.deliveries, e)
	s.places = append(s.places[:0], len(s.deliveries))
	if e.Kind == "initial" && life > 2 {
		return fmt.Errorf("%v: the handler was notified of everything before", e)
	}
	if _, known := s.known[e.Key]; !known && e.deletes() && life <= 2 {
		return nil // Of before its initial list: a new durable name gets that, too (D3).
	}
	return s.known.learn(e)
}

// followed returns the places at which the story may be after e, if e was delivered before.
func (s *story) followed(e delivery) (places []int) {
	for _, at := range s.places {
		if at < len(s.deliveries) && s.deliveries[at] == e {
			places = append(places, at+1)
		}
	}
	return places
}
