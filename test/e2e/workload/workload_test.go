package workload_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

var fill = flag.Int("fill", 200, "how many Pods TestFill creates")

func TestFill(t *testing.T) {
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
	begin := time.Now()
	last := 0
	progress := func(done, _ int) { last = done }
	if err := workload.FillPods(ctx, cp.Config(), "default", *fill, progress); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d Pods created in %v", *fill, time.Since(begin))
	if last != *fill {
		t.Errorf("the last progress was %d, want %d", last, *fill)
	}

	client, err := kubernetes.NewForConfig(cp.Config())
	if err != nil {
		t.Fatal(err)
	}
	list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != *fill {
		t.Fatalf("%d Pods, want %d", len(list.Items), *fill)
	}
	average := list.Size() / len(list.Items)
	t.Logf("%d bytes of protobuf each, %d of them managedFields", average, managedFieldsSize(&list.Items[0]))
	if average < 3200 || average > 3600 {
		t.Errorf("a Pod takes %d bytes, want about 3,400", average)
	}

	expectVaried(t, cp.Config())
}

// expectVaried makes varied objects, and looks at what the server makes of them.
func expectVaried(t *testing.T, cfg *rest.Config) {
	t.Helper()
	ctx := t.Context()
	clients, err := workload.NewClients(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(clients.CreateNamespace(ctx, "varied"), clients.DefineGadgets(ctx)); err != nil {
		t.Fatal(err)
	}
	clients.Varied = true
	core := corev1.SchemeGroupVersion
	for _, resource := range []schema.GroupVersionResource{core.WithResource("pods"), core.WithResource("configmaps"), workload.Gadgets} {
		const objects = 30
		err := workload.Parallel(ctx, objects, nil, func(ctx context.Context, i int) error {
			return clients.Create(ctx, resource, "varied", i)
		})
		if err == nil {
			err = clients.Annotate(ctx, resource, "varied", objects-1, "touched", "yes")
		}
		if err != nil {
			t.Fatal(err)
		}
		ratio, err := clients.Compression(ctx, resource, "varied")
		if err != nil {
			t.Fatal(err)
		}
		if t.Logf("%s: gzip 1/%.1f", resource.Resource, ratio); ratio < 1.7 || ratio > 6 {
			t.Errorf("%s: gzip 1/%.1f, want about 1/2 to 1/5", resource.Resource, ratio)
		}
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	list, err := client.CoreV1().Pods("varied").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range list.Items {
		if managers := len(pod.ManagedFields); managers < 2 || pod.Status.PodIP == "" || pod.Status.ContainerStatuses[0].ContainerID == "" {
			t.Errorf("%s has %d managers and status %v", pod.Name, managers, pod.Status)
		}
	}
	t.Logf("a varied Pod takes %d bytes of protobuf", list.Size()/len(list.Items))
}

func managedFieldsSize(pod *corev1.Pod) int {
	size := 0
	for _, entry := range pod.ManagedFields {
		size += entry.Size()
	}
	return size
}

func TestPodsInMemoryHaveAboutTheSizeOfStoredOnes(t *testing.T) {
	for i, pod := range workload.Pods(100) {
		if size := pod.Size(); size < 3200 || size > 4000 {
			t.Errorf("Pod %d takes %d bytes, want about 3,400", i, size)
		}
	}
}

func TestOtherObjectsHaveTheSizeThatTheyAreSaidToHave(t *testing.T) {
	for _, i := range []int{0, 999, 49_999} {
		if size := workload.ConfigMap(i).Size(); size < 15_000 || size > 17_000 {
			t.Errorf("ConfigMap %d takes %d bytes, want about 16,000", i, size)
		}
		encoded, err := workload.Gadget(i).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if size := len(encoded); size < 1_500 || size > 1_800 {
			t.Errorf("gadget %d takes %d bytes of JSON, want about 1,650; the server adds 550", i, size)
		}
	}
}

// TestVariedObjectsCompressAsThoseOfARealCluster counts what gzip, as the API server uses it,
// makes of many of them in a row.
func TestVariedObjectsCompressAsThoseOfARealCluster(t *testing.T) {
	for _, kind := range []struct {
		name                  string
		object                func(i int) any
		leastBytes, mostBytes int
		leastRatio, mostRatio float64
	}{
		{"Pods", func(i int) any { return workload.VariedPod(i) }, 3000, 8000, 2, 6},
		{"ConfigMaps", func(i int) any { return workload.VariedConfigMap(i) }, 15_000, 17_500, 2, 3},
		{"gadgets", func(i int) any { return workload.VariedGadget(i) }, 2500, 4000, 2, 4},
	} {
		const objects = 200
		var compressed bytes.Buffer
		w, err := gzip.NewWriterLevel(&compressed, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for i := range objects {
			content, err := json.Marshal(kind.object(i))
			if err != nil {
				t.Fatal(err)
			}
			n, err := w.Write(content)
			if err != nil {
				t.Fatal(err)
			}
			size += n
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		ratio := float64(size) / float64(compressed.Len())
		t.Logf("%s: %d bytes of JSON each, 1/%.1f compressed", kind.name, size/objects, ratio)
		if size < objects*kind.leastBytes || size > objects*kind.mostBytes || ratio < kind.leastRatio || ratio > kind.mostRatio {
			t.Errorf("%s: %d bytes of JSON each, 1/%.1f compressed, want %d to %d, and 1/%v to 1/%v", kind.name, size/objects, ratio,
				kind.leastBytes, kind.mostBytes, kind.mostRatio, kind.leastRatio)
		}
	}
}
