package e2e

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/informers"
)

// fullLists has the paths of the requests that list everything, streamed or not.
type fullLists struct {
	mu    sync.Mutex
	paths []string
}

// attach returns a copy of cfg whose lists are noted.
func (l *fullLists) attach(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return listNoter{l, next} })
	return cfg
}

// take returns the paths since it was called last.
func (l *fullLists) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	paths := l.paths
	l.paths = nil
	return paths
}

type listNoter struct {
	lists *fullLists
	http.RoundTripper
}

func (n listNoter) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	isWatch := query.Get("watch") != "" && query.Get("sendInitialEvents") == ""
	if !isWatch && query.Get("limit") != "1" && r.URL.Path != "/api/v1/namespaces/kube-system" {
		n.lists.mu.Lock()
		n.lists.paths = append(n.lists.paths, r.URL.Path)
		n.lists.mu.Unlock()
	}
	return n.RoundTripper.RoundTrip(r)
}

// factoryLife runs factories of each kind in one Cache, as a program would that had client-go's.
func factoryLife(t *testing.T, path, namespace string, cfg *rest.Config, handlers map[string]*recorder, during func(map[string]cache.SharedIndexInformer)) {
	t.Helper()
	p := launch(t, path, warmwatch.Options{})
	client := newHTTPClient(t, cfg, func(cfg *rest.Config) (kubernetes.Interface, error) { return kubernetes.NewForConfig(cfg) })
	typed := informers.NewSharedInformerFactoryWithOptions(p.cache, client, 0, informers.WithNamespace(namespace))
	cfg = rest.CopyConfig(cfg)
	cfg.ContentConfig = rest.ContentConfig{} // Of typed clients only.
	cfg.Wrap(p.cache.WrapTransport)
	unstructured := informers.NewFilteredDynamicSharedInformerFactory(p.cache, newHTTPClient(t, cfg, dynamic.NewForConfig), 0, namespace, nil)
	partial := informers.NewFilteredMetadataSharedInformerFactory(p.cache, newHTTPClient(t, metadata.ConfigFor(cfg), metadata.NewForConfig), 0, namespace, nil)
	services, err := typed.ForResource(corev1.SchemeGroupVersion.WithResource("services"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]cache.SharedIndexInformer{
		"ConfigMaps":             typed.Core().V1().ConfigMaps().Informer(),
		"Deployments":            typed.Apps().V1().Deployments().Informer(),
		"Leases":                 typed.Coordination().V1().Leases().Informer(),
		"Services":               services.Informer(),
		"dynamic ConfigMaps":     unstructured.ForResource(configMaps).Informer(),
		"metadata of ConfigMaps": partial.ForResource(configMaps).Informer(),
	}
	for name, informer := range all {
		if _, err := informers.AddDurableEventHandler(informer, "handler", handlers[name], warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(p.ctx)
	typed.StartWithContext(ctx)
	unstructured.Start(ctx.Done())
	partial.Start(ctx.Done())
	defer func() {
		cancel()
		typed.Shutdown()
		unstructured.Shutdown()
		partial.Shutdown()
		p.stop()
	}()
	for _, informer := range all {
		awaitSync(t, informer)
		s, ok := informers.Of(informer)
		if !ok {
			t.Fatal("an informer is not of the Cache")
		}
		awaitPhase(t, s, warmwatch.PhaseLive)
	}
	if found, err := typed.Apps().V1().Deployments().Lister().Deployments(namespace).List(labels.Everything()); err != nil || len(found) == 0 {
		t.Errorf("the lister has %v, %v", found, err)
	}
	during(all)
}

// TestFactoriesGoOnAfterARestart: typed ones of several groups, dynamic and metadata ones, by
// clients whose transports are not wrapped. The
// second life lists nothing, and is notified of the deletions of the downtime, by a client that
// speaks protobuf, which is client-go's default, and by one of JSON.
func TestFactoriesGoOnAfterARestart(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"", runtime.ContentTypeJSON} {
		t.Run("content type "+contentType, func(t *testing.T) {
			client := newClient(t, shared.Config())
			namespace := newNamespace(t, client)
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			create := func(name string) {
				t.Helper()
				m := metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}
				pod := corev1.PodTemplateSpec{ObjectMeta: m, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
				_, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: m}, metav1.CreateOptions{})
				must(err)
				_, err = client.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
					ObjectMeta: m, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: m.Labels}, Template: pod},
				}, metav1.CreateOptions{})
				must(err)
				_, err = client.CoordinationV1().Leases(namespace).Create(t.Context(), &coordinationv1.Lease{ObjectMeta: m}, metav1.CreateOptions{})
				must(err)
				_, err = client.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
					ObjectMeta: m, Spec: corev1.ServiceSpec{ClusterIP: "None"},
				}, metav1.CreateOptions{})
				must(err)
			}
			remove := func(name string) {
				t.Helper()
				must(client.CoreV1().ConfigMaps(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
				must(client.AppsV1().Deployments(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
				must(client.CoordinationV1().Leases(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
				must(client.CoreV1().Services(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
			}
			expect := func(all map[string]cache.SharedIndexInformer, names ...string) {
				t.Helper()
				for what, informer := range all {
					eventuallyTrue(t, what, func() bool {
						keys := informer.GetStore().ListKeys()
						slices.Sort(keys)
						return slices.Equal(keys, names)
					})
				}
			}
			handlers := map[string]*recorder{}
			for _, name := range []string{"ConfigMaps", "Deployments", "Leases", "Services", "dynamic ConfigMaps", "metadata of ConfigMaps"} {
				handlers[name] = newRecorder(t)
			}
			var lists fullLists
			cfg := lists.attach(shared.Config())
			cfg.ContentType = contentType
			path := newPath(t)

			create("stays")
			create("goes")
			factoryLife(t, path, namespace, cfg, handlers, func(all map[string]cache.SharedIndexInformer) {
				expect(all, namespace+"/goes", namespace+"/stays")
				for _, r := range handlers {
					eventuallyTrue(t, "two additions", func() bool { return r.count() == 2 })
					r.take()
				}
			})
			if len(lists.take()) == 0 {
				t.Error("the first life lists nothing")
			}
			remove("goes")
			factoryLife(t, path, namespace, cfg, handlers, func(all map[string]cache.SharedIndexInformer) {
				expect(all, namespace+"/stays")
				for _, r := range handlers {
					r.expect(t, "delete "+namespace+"/goes")
				}
				create("comes")
				expect(all, namespace+"/comes", namespace+"/stays")
			})
			if got := lists.take(); len(got) > 0 {
				t.Errorf("the second life lists %v", got)
			}
		})
	}
}
