package command

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/workqueue"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	testsupport.Main(m, testsupport.Programs{"hold": process.HoldProgram})
}

// The informers of the file that build makes.
const (
	podsInformer    = `pods/v1 (typed) namespace="ns" labels="app=web"`
	secretsInformer = "secrets/v1 (typed)"
	widgetsInformer = "widgets.example.com/v1 (unstructured)"
)

const secret = "c2VjcmV0" // "secret" in base64.

func pod(name, node string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": "web"}}}
	p.Spec.NodeName = node
	return p
}

func widget(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"namespace": "ns", "name": name},
		"spec":     map[string]any{"size": int64(3)},
	}}
}

// A resource is what an informer of the file lists.
type resource struct {
	*source.Source
	example runtime.Object
	options warmwatch.InformerOptions
}

func resources(t *testing.T) []resource {
	token := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "token", Annotations: map[string]string{
			corev1.LastAppliedConfigAnnotation: `{"data":{"password":"` + secret + `"}}`,
		}},
		Data: map[string][]byte{"password": []byte("secret")}, Type: corev1.SecretTypeOpaque,
	}
	byNode := func(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Spec.NodeName}, nil }
	byData := func(obj any) ([]string, error) { return []string{string(obj.(*corev1.Secret).Data["password"])}, nil }
	return []resource{
		{source.New(t, pod("a", "one"), pod("b", "one"), pod("c", "two")), &corev1.Pod{}, warmwatch.InformerOptions{
			Resource: corev1.SchemeGroupVersion.WithResource("pods"), Namespace: "ns", LabelSelector: "app=web",
			Indexers: cache.Indexers{"node": byNode}, IndexVersion: "1",
		}},
		{source.New(t, token), &corev1.Secret{}, warmwatch.InformerOptions{
			Resource: corev1.SchemeGroupVersion.WithResource("secrets"), Indexers: cache.Indexers{"data": byData}, IndexVersion: "1",
		}},
		{source.New(t, widget("w")), &unstructured.Unstructured{}, warmwatch.InformerOptions{
			Resource: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
		}},
	}
}

// A life is one process that uses the file.
type life struct {
	*warmwatch.Cache
	informers []*warmwatch.SharedIndexInformer
	run       func()
	end       func()
}

func live(t *testing.T, path string, all []resource) *life {
	c, err := warmwatch.Open(t.Context(), path, warmwatch.Options{ClusterID: func(context.Context) (string, error) { return "cluster-1", nil }})
	if err != nil {
		t.Fatal(err)
	}
	l := &life{Cache: c}
	var stops []func()
	for _, r := range all {
		informer, err := c.NewSharedIndexInformer(r, r.example, r.options)
		if err != nil {
			t.Fatal(err)
		}
		l.informers = append(l.informers, informer)
	}
	l.run = func() {
		for _, informer := range l.informers {
			stops = append(stops, bubble.Start(t, informer))
		}
		bubble.Settle()
	}
	l.end = func() {
		for _, stop := range stops {
			stop()
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	return l
}

// build makes a file with three informers. A handler, a reconciler and a workqueue have not done everything, another
// handler has. The last one has got a bookmark. The timeline is empty: it has the path and the order of goroutines.
func build(t *testing.T) (path string) {
	t.Helper()
	path = testsupport.Path(t)
	bubble.Run(t, func(t *testing.T) {
		all := resources(t)
		first := live(t, path, all)
		addHandlers(t, first.informers[0])
		addHandler(t, first.informers[0], "audit")
		first.run()
		q, err := workqueue.New(first.Workqueues(), "mail", workqueue.Options[string]{LeaveAtShutDown: true})
		if err != nil {
			t.Fatal(err)
		}
		q.Add("somebody")
		bubble.Settle()
		q.ShutDown()
		first.end()

		second := live(t, path, all)
		addHandler(t, second.informers[0], "audit")
		second.run()
		all[2].With(func() { all[2].RV++ })
		bookmark := widget("")
		bookmark.SetResourceVersion("2")
		all[2].Emit(watch.Bookmark, bookmark)
		all[0].Put(pod("b", "two"))
		all[0].Remove("c")
		bubble.Settle()
		second.end()
	})
	err := write(t.Context(), path, func(f *file) error {
		_, err := f.Update(func(b *persist.Batch) { b.Drop(persist.Bucket{Space: timelineSpace, Name: timelineBucket}) })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func addHandler(t *testing.T, informer *warmwatch.SharedIndexInformer, name string) {
	t.Helper()
	if _, err := informer.AddDurableEventHandler(name, cache.ResourceEventHandlerFuncs{}, warmwatch.DurableOptions{}); err != nil {
		t.Fatal(err)
	}
}

func addHandlers(t *testing.T, informer *warmwatch.SharedIndexInformer) {
	t.Helper()
	addHandler(t, informer, "network")
	fails := func(_ context.Context, r warmwatch.ReconcileRequest) (result warmwatch.ReconcileResult, err error) {
		if r.Name == "a" {
			err = errors.New("not today")
		}
		return result, err
	}
	if _, err := informer.AddReconciler("files", fails, warmwatch.ReconcilerOptions{DurableOptions: warmwatch.DurableOptions{Epoch: "1"}}); err != nil {
		t.Fatal(err)
	}
}

// run runs the command.
func run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := NewCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	cmd.SetArgs(append([]string{}, args...)) // Not nil, which means those of the process.
	err := cmd.ExecuteContext(t.Context())
	return out.String(), errOut.String(), ExitCode(err)
}

// expect runs the command, and compares its exit code. A part of what it prints, if it is not empty, must be there.
func expect(t *testing.T, code int, part string, args ...string) (stdout string) {
	t.Helper()
	stdout, stderr, got := run(t, args...)
	if got != code || !strings.Contains(stdout+stderr, part) {
		t.Errorf("%q: exit code %d, want %d, and %q in:\n%s%s", args, got, code, part, stdout, stderr)
	}
	return stdout
}

var sizes = regexp.MustCompile(`(SIZE|FREE) {3}.*B(, .*B free)?`)

// expectGolden compares a text with a golden file. The path and the sizes of the file are left out.
func expectGolden(t *testing.T, name, path, got string) {
	t.Helper()
	got = sizes.ReplaceAllString(strings.ReplaceAll(got, path, "FILE.db"), "$1   ...")
	golden := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-golden +got):\n%s", name, diff)
	}
}
