package controllerruntime

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	clientworkqueue "k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/warmwatch/warmwatch"
)

// listing lists these ConfigMaps, and watches nothing.
func listing(version string, names ...string) toolscache.ListerWatcher {
	list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
	for _, name := range names {
		list.Items = append(list.Items, corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "u", ResourceVersion: "1"}})
	}
	return toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return list, nil },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
	}, noWatchList{})
}

// requestsOf returns what a source puts into the queue of a process whose server lists these ConfigMaps.
func requestsOf(t *testing.T, path, version string, names ...string) (requests []string) {
	t.Helper()
	opened, err := warmwatch.Open(t.Context(), path, warmwatch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	informer, err := opened.NewSharedIndexInformer(listing(version, names...), &corev1.ConfigMap{},
		warmwatch.InformerOptions{Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), NeverResume: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := &pollingCache{informer: informer}
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	queue := NewQueue(opened)("controller", clientworkqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	kind := Kind(c, "configmaps", &corev1.ConfigMap{}, &handler.TypedEnqueueRequestForObject[*corev1.ConfigMap]{})
	if err := kind.Start(ctx, queue); err != nil {
		t.Fatal(err)
	}
	if err := kind.WaitForSync(ctx); err != nil {
		t.Error(err)
	}
	synctest.Wait()
	for queue.Len() > 0 {
		request, _ := queue.Get()
		requests = append(requests, request.String())
		queue.Done(request)
	}
	queue.ShutDown()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := opened.Close(); err != nil {
		t.Error(err)
	}
	slices.Sort(requests)
	return requests
}

// TestKindBringsTheDeletionsOfTheDowntime, and nothing of what is as it was.
func TestKindBringsTheDeletionsOfTheDowntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "cache.db")
		got := [][]string{
			requestsOf(t, path, "2", "a", "b"),
			requestsOf(t, path, "2", "a", "b"),
			requestsOf(t, path, "3", "b", "c"),
		}
		want := [][]string{{"ns/a", "ns/b"}, nil, {"ns/a", "ns/c"}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("requests of three processes, -want +got:\n%s", diff)
		}
	})
}

// clientGoCache has an informer that is not warmwatch's.
type clientGoCache struct{ pollingCache }

func (*clientGoCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return toolscache.NewSharedIndexInformer(listing("1"), &corev1.ConfigMap{}, 0, nil), nil
}

// TestKindFailsWithAnotherInformer, instead of losing deletions.
func TestKindFailsWithAnotherInformer(t *testing.T) {
	kind := Kind(&clientGoCache{}, "configmaps", &corev1.ConfigMap{}, &handler.TypedEnqueueRequestForObject[*corev1.ConfigMap]{})
	if err := kind.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := kind.WaitForSync(t.Context()); err == nil {
		t.Error("no error")
	}
}

// TestADeletionWithoutALastStateHasAKey: controller-runtime's handlers take it from the object.
func TestADeletionWithoutALastStateHasAKey(t *testing.T) {
	var got *corev1.ConfigMap
	h := toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) { got = obj.(toolscache.DeletedFinalStateUnknown).Obj.(*corev1.ConfigMap) }}
	namedDeletions{h, &corev1.ConfigMap{}}.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "ns/a"})
	if got.Namespace != "ns" || got.Name != "a" {
		t.Errorf("%v", got)
	}
}
