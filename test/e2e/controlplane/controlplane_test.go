package controlplane_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func TestMissingBinariesNameTheCommandThatBuildsThem(t *testing.T) {
	_, err := controlplane.Start(t.Context(), controlplane.Options{BinDir: filepath.Join(t.TempDir(), "bin")})
	if !errors.Is(err, controlplane.ErrNoBinaries) {
		t.Fatalf("Start: %v, want ErrNoBinaries", err)
	}
}

func TestFailedStartSaysWhyAndLeavesNoProcess(t *testing.T) {
	cp, err := controlplane.Start(t.Context(), controlplane.Options{APIServerFlags: []string{"--no-such-flag"}})
	if err == nil {
		_ = cp.Stop()
		t.Fatal("Start succeeded with an unknown flag")
	}
	t.Logf("%v", err)
}

// TestLife goes through everything that a control plane can do, once: each start
// of the servers takes seconds.
func TestLife(t *testing.T) {
	ctx := t.Context()
	cp, err := controlplane.Start(ctx, controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	client := newConfigMaps(t, cp.Config())
	client.create(ctx, t, "first")
	before := client.list(ctx, t, 1)

	if err := cp.CollectGarbage(ctx); err != nil {
		t.Error(err)
	}
	first := cp.APIServerPID()
	if err := cp.RestartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	if again := cp.APIServerPID(); again == first || again == 0 {
		t.Errorf("API server process %d after %d, want another one", again, first)
	}
	client = newConfigMaps(t, cp.Config())
	client.list(ctx, t, 1)

	if err := cp.SnapshotEtcd(); err != nil {
		t.Fatal(err)
	}
	client.create(ctx, t, "second")
	client.list(ctx, t, 2)
	if err := cp.CompactEtcd(ctx); err != nil {
		t.Fatal(err)
	}
	if err := client.listExact(ctx, before); !apierrors.IsResourceExpired(err) {
		t.Errorf("list at the compacted version %s: %v, want Expired", before, err)
	}

	if err := cp.RestoreEtcd(ctx); err != nil {
		t.Fatal(err)
	}
	client = newConfigMaps(t, cp.Config())
	client.list(ctx, t, 1)
	client.create(ctx, t, "third")
	last := client.list(ctx, t, 2)

	if err := cp.RestoreEtcdBumped(ctx); err != nil {
		t.Fatal(err)
	}
	client = newConfigMaps(t, cp.Config())
	if now := client.list(ctx, t, 1); len(now) < len(last) || (len(now) == len(last) && now <= last) {
		t.Errorf("the version is %s, and was %s before etcd was put back", now, last)
	}
	if err := client.listExact(ctx, last); !apierrors.IsResourceExpired(err) {
		t.Errorf("list at the lost version %s: %v, want Expired", last, err)
	}
}

// configMaps is a client of its own for each life of the server.
type configMaps struct {
	kubernetes.Interface
}

func newConfigMaps(t *testing.T, cfg *rest.Config) configMaps {
	t.Helper()
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(httpClient.CloseIdleConnections)
	client, err := kubernetes.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		t.Fatal(err)
	}
	return configMaps{client}
}

func (c configMaps) create(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// list returns the list's resourceVersion.
func (c configMaps) list(ctx context.Context, t *testing.T, want int) string {
	t.Helper()
	list, err := c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != want {
		t.Fatalf("%d ConfigMaps, want %d", len(list.Items), want)
	}
	return list.ResourceVersion
}

func (c configMaps) listExact(ctx context.Context, resourceVersion string) error {
	_, err := c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{
		ResourceVersion:      resourceVersion,
		ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	})
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	return nil
}
