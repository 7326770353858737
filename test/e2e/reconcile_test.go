package e2e

import (
	"fmt"
	"maps"
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

// TestKillAReconciler kills an agent with ten workers, whose reconciles are slow or fail, at random
// moments. In the end each object is reconciled as the server has it, and so is the deletion of each
// object that a durable handler ever got, with the object at hand (D4, D5). A second reconciler, with an
// epoch, is not called for every object at each start.
func TestKillAReconciler(t *testing.T) {
	t.Parallel()
	seed := newSeed(t)
	cp := borrow(t)
	client := newClient(t, cp.Config())
	w := &workshop{
		cp: cp, client: client, namespace: newNamespace(t, client), file: filepath.Join(t.TempDir(), "cache.db"), rng: newRand(seed),
		delivered: map[string]string{}, done: map[string]*reconciled{},
	}
	for _, r := range reconcilers {
		w.done[r.Name] = &reconciled{found: map[string]string{}, deleted: map[string]bool{}}
	}
	w.changer = newChanger(client, w.namespace, 60, seed)
	w.changer.make(t, 300)
	for life := 1; life <= *killsFlag && !t.Failed(); life++ {
		w.live(t, life)
	}
	for range 2 { // In the second life nothing is left to be done.
		w.begin(t)
		w.compare(t)
		w.agent.end(t)
	}
	if again := w.done["one epoch"].thisLife; len(again) > 0 {
		t.Errorf("what was done was reconciled again in the same epoch: %v", slices.Sorted(maps.Keys(again)))
	}
	checkFile(t, w.file)
	t.Logf("%d kills, %d changes; %d keys waited when it was killed", *killsFlag, w.changer.made.Load(), w.left)
	for name, d := range w.done {
		t.Logf("%s: %d reconciles, %d deletions with the object at hand", name, d.count, len(d.deleted))
		if w.left == 0 || len(d.deleted) == 0 {
			t.Error("nothing was left to be reconciled, or no deletion was: change how agents are killed")
		}
	}
}

var reconcilers = []agent.Reconciler{{Name: "each start", Workers: 10}, {Name: "one epoch", Workers: 10, Epoch: "1"}}

// A workshop has the agent, and what it has said that it has done.
type workshop struct {
	cp        *controlplane.ControlPlane
	client    kubernetes.Interface
	namespace string
	file      string
	rng       *rand.Rand
	changer   *changer
	agent     *agentProcess
	seen      int // Events of this life's agent.

	delivered map[string]string // Keys of the objects that the durable handler got, by uid.
	done      map[string]*reconciled
	left      int // Keys that waited when the agent was killed.
}

// reconciled is what one reconciler has done.
type reconciled struct {
	found    map[string]string // What the last reconcile has found, by key.
	deleted  map[string]bool   // Uids whose deletion was reconciled.
	thisLife map[string]bool   // Keys that were reconciled by this life's agent.
	count    int
}

// live is one life of the agent, which ends with kill -9, and what happens until the next one.
func (w *workshop) live(t *testing.T, life int) {
	t.Helper()
	down, historyLost := w.rng.IntN(150), life%6 == 0
	w.changer.begin(t)
	w.begin(t)
	if life%3 == 0 { // At any moment of its start.
		time.Sleep(time.Duration(w.rng.IntN(800)) * time.Millisecond)
	} else {
		w.changer.await(t, 50+w.rng.IntN(300))
		if life%4 == 0 {
			w.changer.end(t)
			w.compare(t)
			w.changer.begin(t)
			w.changer.await(t, 20+w.rng.IntN(100))
		} else {
			w.left += w.agent.contents(t)[0].Status.Unreconciled
		}
	}
	w.agent.kill(t)
	w.read()
	w.changer.await(t, down)
	w.changer.end(t)
	if historyLost {
		if err := w.cp.RestartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *workshop) begin(t *testing.T) {
	t.Helper()
	w.seen = 0
	for _, d := range w.done {
		d.thisLife = map[string]bool{}
	}
	spec := specOf(configMaps, "ConfigMap")
	spec.Kubeconfig, spec.Namespace, spec.File = w.cp.Kubeconfig(), w.namespace, w.file
	spec.Handlers = []agent.Handler{{Name: "durable", Durable: true, Tell: true, TellInitial: true}}
	spec.Reconcilers = reconcilers
	w.agent = startAgent(t, spec)
}

// read takes what the agent has reported since the last call.
func (w *workshop) read() {
	all := w.agent.Events()
	for _, e := range all[w.seen:] {
		if e.Handler == "durable" {
			if e.Change.Type != "DELETED" {
				w.delivered[uidOf(e.New)] = e.Key
			}
			continue
		}
		d := w.done[e.Handler]
		d.count++
		d.thisLife[e.Key] = true
		if d.found[e.Key] = e.New; e.New == "" {
			delete(d.found, e.Key)
		}
		for _, version := range e.Deleted {
			d.deleted[uidOf(version)] = true
		}
	}
	w.seen = len(all)
}

// compare waits until all is reconciled as the server has it, which does not change now.
func (w *workshop) compare(t *testing.T) {
	t.Helper()
	list, err := w.client.CoreV1().ConfigMaps(w.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want, exists := versionsOfList(t, list), map[string]bool{}
	for _, version := range want {
		exists[uidOf(version)] = true
	}
	eventually(t, "everything to be reconciled", func() error {
		w.read()
		for name, d := range w.done {
			if err := difference(want, d.found); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			for uid, key := range w.delivered {
				if !exists[uid] && !d.deleted[uid] {
					return fmt.Errorf("%s: the deletion of %s, uid %s, was not reconciled", name, key, uid)
				}
			}
		}
		for key := range want {
			if !w.done["each start"].thisLife[key] {
				return fmt.Errorf("%s was not reconciled after the start", key)
			}
		}
		if status := w.agent.contents(t)[0].Status; status.Unreconciled != 0 || status.Error != "" {
			return fmt.Errorf("status: %+v", status)
		}
		return nil
	})
}
