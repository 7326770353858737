package warmwatch_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr/funcr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// unknownKind is of a type that client-go does not know.
type unknownKind struct{ corev1.ConfigMap }

func TestAnExampleThatIsCertainlyOfAnotherResourceIsAnError(t *testing.T) {
	unstructuredOf := func(apiVersion, kind string) runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	}
	for name, c := range map[string]struct {
		example                  runtime.Object
		group, version, resource string
		want                     bool
	}{
		"a Pod":                                   {&corev1.Pod{}, "", "v1", "pods", true},
		"a Pod for ConfigMaps":                    {&corev1.Pod{}, "", "v1", "configmaps", false},
		"a Pod of apps":                           {&corev1.Pod{}, "apps", "v1", "pods", false},
		"a Deployment of another version":         {&appsv1.Deployment{}, "apps", "v1beta1", "deployments", false},
		"Endpoints":                               {&corev1.Endpoints{}, "", "v1", "endpoints", true}, //nolint:staticcheck // An odd plural.
		"an Ingress":                              {&networkingv1.Ingress{}, "networking.k8s.io", "v1", "ingresses", true},
		"a NetworkPolicy":                         {&networkingv1.NetworkPolicy{}, "networking.k8s.io", "v1", "networkpolicies", true},
		"a PodDisruptionBudget":                   {&policyv1.PodDisruptionBudget{}, "policy", "v1", "poddisruptionbudgets", true},
		"a Pod under a name that nobody knows":    {&corev1.Pod{}, "", "v1", "podz", true},
		"a type that nobody knows":                {&unknownKind{}, "", "v1", "pods", true},
		"an unstructured Pod":                     {unstructuredOf("v1", "Pod"), "", "v1", "pods", true},
		"an unstructured Pod for ConfigMaps":      {unstructuredOf("v1", "Pod"), "", "v1", "configmaps", false},
		"an unstructured object of another group": {unstructuredOf("example.com/v1", "Pod"), "", "v1", "pods", false},
		"an unstructured object of no kind":       {&unstructured.Unstructured{}, "", "v1", "pods", true},
		"a custom resource with an odd plural":    {unstructuredOf("example.com/v1", "Ox"), "example.com", "v1", "oxen", true},
		"PodMetrics, whose resource is pods":      {unstructuredOf("metrics.k8s.io/v1beta1", "PodMetrics"), "metrics.k8s.io", "v1beta1", "pods", true},
		"metadata":                                {&metav1.PartialObjectMetadata{}, "", "v1", "pods", true},
		"metadata as it is sent":                  {&metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}}, "", "v1", "pods", true},
		"metadata of Pods for ConfigMaps":         {&metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}, "", "v1", "configmaps", false},
	} {
		t.Run(name, func(t *testing.T) {
			cache, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer cache.Close()
			resource := schema.GroupVersionResource{Group: c.group, Version: c.version, Resource: c.resource}
			_, err = cache.NewSharedIndexInformer(newSource(t), c.example, warmwatch.InformerOptions{Resource: resource})
			if (err == nil) != c.want {
				t.Errorf("error %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "no object of "+resource.String()) {
				t.Errorf("the error does not name the resource: %v", err)
			}
		})
	}
}

func inNamespace(namespace, name, label string) *corev1.ConfigMap {
	cm := configMap(name)
	cm.Namespace, cm.Labels = namespace, map[string]string{"app": label}
	return cm
}

// outsideRefused counts the log lines about objects from outside.
func outsideRefused(n *atomic.Int64) setup {
	logger := funcr.New(func(_, args string) {
		if strings.Contains(args, "Refusing what the ListerWatcher returns") {
			n.Add(1)
		}
	}, funcr.Options{})
	return func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
		o.Logger = &logger
		io.Namespace, io.LabelSelector = "ns", "app in (a)"
	}
}

// TestObjectsFromOutsideTheIdentityAreNotServed where the request for them cannot be seen: the
// ListerWatcher lists more than InformerOptions say.
func TestObjectsFromOutsideTheIdentityAreNotServed(t *testing.T) {
	for name, c := range map[string]struct {
		outside *corev1.ConfigMap
		want    string
	}{
		"of another namespace":   {inNamespace("other", "x", "a"), `other/x, expected objects of namespace "ns" only`},
		"with other labels":      {inNamespace("ns", "x", "b"), `ns/x with labels map[app:b], expected objects that "app=a" selects only`},
		"of no namespace at all": {inNamespace("", "x", "a"), `/x, expected objects of namespace "ns" only`},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, inNamespace("ns", "a", "a"), c.outside)
				var logged atomic.Int64
				p := launch(t, testsupport.Path(t), f, outsideRefused(&logged))
				r, _ := add(t, p.informer)
				p.run()
				settle()
				expectOutside(t, p, c.want)
				if r.expect(t); p.informer.HasSynced() || len(p.informer.GetStore().List()) != 0 {
					t.Errorf("synced %v, %d objects", p.informer.HasSynced(), len(p.informer.GetStore().List()))
				}
				if n := logged.Load(); n != 1 {
					t.Errorf("logged %d times", n)
				}
				f.with(func() { delete(f.objects, keyOf(c.outside)) })
				settle()
				r.expect(t, "add ns/a@1 initial")
				if err := p.informer.Status().Err; err != nil {
					t.Errorf("status says %v", err)
				}
			})
		})
		t.Run(name+"/in a watch", func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f, path := newSource(t, inNamespace("ns", "a", "a")), testsupport.Path(t)
				var logged atomic.Int64
				for _, cold := range []bool{true, false} {
					p := launch(t, path, f, outsideRefused(&logged))
					r, _ := add(t, p.informer)
					p.run()
					settle()
					r.expect(t, "add ns/a@1 initial")
					if cold {
						f.put(c.outside)
					}
					settle()
					expectOutside(t, p, c.want)
					r.expect(t)
					if got := p.informer.GetStore().ListKeys(); len(got) != 1 {
						t.Errorf("serves %q", got)
					}
					p.stop()
				}
				if n := logged.Load(); n != 2 {
					t.Errorf("logged %d times", n)
				}
			})
		})
	}
}

func expectOutside(t *testing.T, p *process, want string) {
	t.Helper()
	if err := p.informer.Status().Err; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("status says %v, expected %s", err, want)
	}
}

// TestAnObjectThatLeavesTheIdentityIsDeleted: the server says so by a deletion, which has the
// object as it is now.
func TestAnObjectThatLeavesTheIdentityIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, inNamespace("ns", "a", "a"))
		var logged atomic.Int64
		p := launch(t, testsupport.Path(t), f, outsideRefused(&logged))
		r, _ := add(t, p.informer)
		p.run()
		settle()
		f.with(func() { f.objects["ns/a"] = inNamespace("ns", "a", "b") })
		f.remove("a")
		settle()
		r.expect(t, "add ns/a@1 initial", "delete ns/a@2")
		if err := p.informer.Status().Err; err != nil || logged.Load() != 0 {
			t.Errorf("status says %v, logged %d times", err, logged.Load())
		}
	})
}
