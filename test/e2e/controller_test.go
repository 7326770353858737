package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// shadow is a controller as most are: informers of a factory, listers and a
// workqueue. It keeps a ConfigMap for each Pod, and none for Pods that are gone.
type shadow struct {
	client     kubernetes.Interface
	namespace  string
	informer   *warmwatch.SharedIndexInformer
	pods       corelisters.PodLister
	queue      workqueue.TypedRateLimitingInterface[string]
	reconciled sync.Map // Pods that were looked at.
}

func (s *shadow) enqueue(obj any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		s.queue.Add(key)
	}
}

func (s *shadow) run(ctx context.Context) {
	for {
		key, shutdown := s.queue.Get()
		if shutdown {
			return
		}
		if err := s.reconcile(ctx, key); err != nil {
			s.queue.AddRateLimited(key)
		} else {
			s.queue.Forget(key)
		}
		s.queue.Done(key)
	}
}

func (s *shadow) reconcile(ctx context.Context, key string) error {
	_, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	s.reconciled.Store(name, true)
	c := s.client.CoreV1().ConfigMaps(s.namespace)
	switch _, err := s.pods.Pods(s.namespace).Get(name); {
	case apierrors.IsNotFound(err):
		if err := c.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
	case err != nil:
		return err
	default:
		_, err := c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// life runs the controller with an informer that the factory takes for its own.
func (s *shadow) life(t *testing.T, path string, during func()) {
	t.Helper()
	p := launch(t, path, warmwatch.Options{})
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithNamespace(s.namespace))
	factory.InformerFor(&corev1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		informer, err := p.cache.NewSharedIndexInformer(podsIn(client, s.namespace), &corev1.Pod{}, warmwatch.InformerOptions{
			Resource: pods, Namespace: s.namespace, ResyncPeriod: resync,
			Indexers: cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.informer = informer
		return informer
	})
	s.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	s.pods = factory.Core().V1().Pods().Lister()
	factory.Core().V1().Pods().Informer()
	registration, err := s.informer.AddDurableEventHandler("shadow", cache.ResourceEventHandlerFuncs{
		AddFunc:    s.enqueue,
		UpdateFunc: func(_, obj any) { s.enqueue(obj) },
		DeleteFunc: s.enqueue,
	}, warmwatch.DurableOptions{})

	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.ctx)
	factory.StartWithContext(ctx)
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			t.Errorf("%v did not sync", kind)
		}
	}
	awaitSync(t, registration)
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() { s.run(ctx) })
	}
	during()
	s.queue.ShutDown()
	workers.Wait()
	cancel()
	factory.Shutdown()
	p.stop()
}

func (s *shadow) expect(t *testing.T, count int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d Pods and their shadows", count), func() error {
		list, err := s.client.CoreV1().Pods(s.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != count {
			t.Fatalf("%d Pods, want %d", len(list.Items), count)
		}
		var want, got []string
		for i := range list.Items {
			want = append(want, list.Items[i].Name)
		}
		for _, object := range listConfigMaps(t, s.client, s.namespace).Items {
			got = append(got, object.Name)
		}
		if !slices.Equal(want, got) {
			return fmt.Errorf("Pods %v, shadows %v", want, got)
		}
		return nil
	})
}

// TestController (D2): Pods that come and go while the controller is down are made up for after its restart, with the
// listers of client-go and a durable handler.
func TestController(t *testing.T) {
	t.Parallel()
	client := newClient(t, shared.Config())
	s := &shadow{client: client, namespace: newNamespace(t, client)}
	if err := workload.FillPods(t.Context(), shared.Config(), s.namespace, 60, nil); err != nil {
		t.Fatal(err)
	}
	remove := func(number int) {
		t.Helper()
		name := workload.Pod(number).Name
		err := client.CoreV1().Pods(s.namespace).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		if err != nil {
			t.Fatal(err)
		}
	}
	create := func(number int) {
		t.Helper()
		if _, err := client.CoreV1().Pods(s.namespace).Create(t.Context(), workload.Pod(number), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	path := newPath(t)
	s.life(t, path, func() {
		s.expect(t, 60)
		remove(0)
		create(60)
		s.expect(t, 60)
	})
	remove(1)
	remove(2)
	create(61)
	s.life(t, path, func() {
		s.expect(t, 59)
		if status := s.informer.Status(); status.Relists != 0 {
			t.Errorf("relisted: %+v", status)
		}
		selector := labels.SelectorFromSet(labels.Set{"app": workload.Pod(0).Labels["app"]})
		for name, list := range map[string]func(labels.Selector) ([]*corev1.Pod, error){
			"lister of the factory":      s.pods.List,
			"lister of a namespace":      s.pods.Pods(s.namespace).List,
			"lister made of our indexer": corelisters.NewPodLister(s.informer.GetIndexer()).List,
			"lister of an empty namespace": func(labels.Selector) ([]*corev1.Pod, error) {
				return s.pods.Pods("elsewhere").List(labels.Everything())
			},
			"lister with everything selected": func(labels.Selector) ([]*corev1.Pod, error) { return s.pods.List(labels.Everything()) },
		} {
			want := map[string]int{"lister of an empty namespace": 0, "lister with everything selected": 59}
			count, ok := want[name]
			if !ok {
				count = workload.PodsPerApp - 3
			}
			if found, err := list(selector); err != nil || len(found) != count {
				t.Errorf("%s: %d Pods, want %d (%v)", name, len(found), count, err)
			}
		}
	})
	for _, number := range []int{1, 2, 61} {
		if _, ok := s.reconciled.Load(workload.Pod(number).Name); !ok {
			t.Errorf("Pod %d was never looked at", number)
		}
	}
}
