package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// TestAControllerThatIsKilledMakesNoChildTwice (A6): it is killed before the file has the children that it has made,
// and while it starts it is stopped for 50 ms again and again, as where a processor is short.
func TestAControllerThatIsKilledMakesNoChildTwice(t *testing.T) {
	rng := newRand(newSeed(t))
	client := newClient(t, shared.Config())
	n := &nursery{client: client, namespace: newNamespace(t, client), file: newPath(t)}
	const kills, atATime = 4, 3
	fillers := kills/2 + 1
	for i := range fillers {
		n.create(t, fmt.Sprint("filler-", i), map[string]string{agent.LabelParent: "nobody"})
	}
	n.begin(t, rng)
	for kill := range kills {
		from := n.parents
		n.bear(t, atATime)
		n.await(t, from+1) // The others are left to the next life.
		n.agent.kill(t)
		if kill%2 == 0 { // As many objects as the file has: nothing can be told by their number.
			fillers--
			n.remove(t, fmt.Sprint("filler-", fillers))
		}
		n.begin(t, rng)
	}
	n.bear(t, 1) // Its child is made after all others.
	n.await(t, n.parents)
	n.agent.end(t)
	checkFile(t, n.file)
	t.Logf("%d parents, stopped %d times", n.parents, n.stops)
}

// A nursery has the parents, and a controller that makes their children.
type nursery struct {
	client          kubernetes.Interface
	namespace, file string
	agent           *agentProcess
	parents, stops  int
}

func (n *nursery) create(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	_, err := n.client.CoreV1().ConfigMaps(n.namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// bear makes parents without children.
func (n *nursery) bear(t *testing.T, parents int) {
	t.Helper()
	for range parents {
		n.create(t, fmt.Sprint("parent-", n.parents), nil)
		n.parents++
	}
}

func (n *nursery) remove(t *testing.T, name string) {
	t.Helper()
	if err := n.client.CoreV1().ConfigMaps(n.namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// begin starts the controller, and stops it now and then until it has synced.
func (n *nursery) begin(t *testing.T, rng *rand.Rand) {
	t.Helper()
	n.agent = startAgent(t, agent.Spec{
		Impl: agent.Warmwatch, Resource: configMaps, Kind: "ConfigMap", Index: agent.LabelParent, Children: true, Wrapped: true,
		Kubeconfig: shared.Kubeconfig(), Namespace: n.namespace, File: n.file,
	})
	synced := make(chan error, 1)
	go func() {
		_, err := n.agent.Answer(t.Context())
		if err == nil {
			_, err = n.agent.Do(t.Context(), agent.Command{Await: []string{agent.Synced}})
		}
		synced <- err
	}()
	for {
		select {
		case err := <-synced:
			if err != nil {
				t.Fatal(err)
			}
			return
		case <-time.After(time.Duration(rng.IntN(60)) * time.Millisecond):
		}
		n.stops++
		for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
			if err := n.agent.Signal(s); err != nil {
				t.Fatal(err)
			}
			if s == syscall.SIGSTOP {
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
}

// await waits until the first parents have a child. Two are a failure at once.
func (n *nursery) await(t *testing.T, parents int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d parents to have a child", parents), func() error {
		children := map[string]int{}
		for _, object := range listConfigMaps(t, n.client, n.namespace).Items {
			parent := object.Labels[agent.LabelParent]
			if children[parent]++; strings.HasPrefix(parent, "parent-") && children[parent] > 1 {
				t.Fatalf("%s has two children", parent)
			}
		}
		for i := range parents {
			if name := fmt.Sprint("parent-", i); children[name] == 0 {
				return fmt.Errorf("%s has no child", name)
			}
		}
		return nil
	})
}
