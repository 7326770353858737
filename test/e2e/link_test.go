package e2e

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/test/e2e/link"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// dials counts the connections that were made.
type dials struct{ atomic.Int64 }

func (d *dials) attach(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	dial := cfg.Dial
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			d.Add(1)
		}
		return conn, err
	}
	return cfg
}

// await waits until n connections more were made.
func (d *dials) await(t *testing.T, n int64) {
	t.Helper()
	until := d.Load() + n
	eventuallyTrue(t, fmt.Sprintf("%d new connections", n), func() bool { return d.Load() >= until })
}

// TestFlakyLink: the link is cut, slow or refused while the server changes and
// while the program begins anew. In the end the cache is right, and everything
// was delivered once.
func TestFlakyLink(t *testing.T) {
	t.Parallel()
	client := newClient(t, shared.Config())
	namespace := newNamespace(t, client)
	changes := newChanger(client, namespace, 60, newSeed(t))
	changes.make(t, 200)
	l, err := link.To(shared.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Down)
	path, durable := newPath(t), newRecorder(t)
	durable.isNew = true // Changes are made while it begins.
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var connections dials
	for _, round := range []struct {
		name   string
		before func()           // The program begins.
		while  func(*testing.T) // It runs, and changes are made.
	}{
		{"the first list is cut off", func() { must(l.CutAfter(30_000)) }, func(t *testing.T) {
			connections.await(t, 4) // A stream, a list, and both again.
			must(l.Heal())
		}},
		{"connections are cut all the time", func() { must(l.CutAfter(40_000)) }, func(t *testing.T) { connections.await(t, 5) }},
		{"the link comes and goes", func() {}, func(t *testing.T) {
			for range 2 {
				changes.await(t, 100)
				l.Down()
				changes.await(t, 100)
				must(l.Up())
				connections.await(t, 1)
			}
		}},
	} {
		t.Run(round.name, func(t *testing.T) {
			round.before()
			linked := newClient(t, connections.attach(l.Attach(shared.Config())))
			p := launch(t, path, warmwatch.Options{})
			informer := p.informer(configMapsIn(linked, namespace), &corev1.ConfigMap{}, configMaps, warmwatch.InformerOptions{Namespace: namespace})
			addDurable(t, informer, "link", durable)
			plain := newRecorder(t)
			addHandler(t, informer, plain)
			changes.begin(t)
			p.run()
			round.while(t)
			changes.end(t)
			expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable, plain)
			t.Logf("%d connections so far, status %+v", connections.Load(), informer.Status())
			p.stop()
			must(l.Heal())
		})
	}
}

// TestAListOverALinkThatIsCutEndsAtLast: no connection lasts for all objects, so client-go's list
// never ends.
func TestAListOverALinkThatIsCutEndsAtLast(t *testing.T) {
	t.Parallel()
	client := newClient(t, shared.Config())
	namespace := newNamespace(t, client)
	const objects = 150 // 2.4 MB, half of that compressed.
	err := workload.Parallel(t.Context(), objects, nil, func(ctx context.Context, i int) error {
		_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, workload.VariedConfigMap(i), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.To(shared.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Down)
	if err := l.CutAfter(300_000); err != nil {
		t.Fatal(err)
	}
	p := launch(t, newPath(t), warmwatch.Options{})
	cfg := l.Attach(shared.Config())
	cfg.Wrap(p.cache.WrapTransport)
	informer := p.informer(configMapsIn(newClient(t, cfg), namespace), &corev1.ConfigMap{}, configMaps, warmwatch.InformerOptions{Namespace: namespace})
	p.run()
	awaitSync(t, informer)
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore())
	p.stop()
}
