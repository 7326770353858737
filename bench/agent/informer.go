package agent

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/bench/micro"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// informer is one of either implementation.
type informer struct {
	cache.SharedIndexInformer
	addDurable func(cache.ResourceEventHandler) error
	status     func() warmwatch.InformerStatus // nil: client-go.
	close      func() error
}

// openInformer makes what Spec says, without handlers.
func openInformer(s Spec, lw cache.ListerWatcher) (*informer, error) {
	resource, example := resourceOf(s.Resource)
	indexers := cache.Indexers{indexApp: appOf}
	if s.Impl == result.ClientGo {
		return &informer{
			SharedIndexInformer: cache.NewSharedIndexInformer(lw, example, 0, indexers),
			close:               func() error { return nil },
		}, nil
	}
	file, closeFile, err := micro.OpenFile(s.File, s.MemoryOnly, 0)
	if err != nil {
		return nil, err
	}
	inf, err := file.NewSharedIndexInformer(lw, example, warmwatch.InformerOptions{
		Resource: resource, Namespace: s.Namespace, Indexers: indexers, IndexVersion: "1",
	})
	if err != nil {
		return nil, errors.Join(err, closeFile())
	}
	return &informer{
		SharedIndexInformer: inf,
		addDurable: func(h cache.ResourceEventHandler) error {
			_, err := inf.AddDurableEventHandler(durableName, h)
			return err
		},
		status: inf.Status,
		close:  closeFile,
	}, nil
}

func resourceOf(name string) (schema.GroupVersionResource, runtime.Object) {
	switch name {
	case "pods":
		return corev1.SchemeGroupVersion.WithResource("pods"), &corev1.Pod{}
	case "configmaps":
		return corev1.SchemeGroupVersion.WithResource("configmaps"), &corev1.ConfigMap{}
	}
	example := &unstructured.Unstructured{}
	example.SetGroupVersionKind(workload.Gadgets.GroupVersion().WithKind("Gadget"))
	return workload.Gadgets, example
}

func appOf(obj any) ([]string, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	return []string{object.GetLabels()["app"]}, nil
}

// newListerWatcher is the one of client-go's generated informers; for gadgets, that
// of its dynamic informers.
func newListerWatcher(s Spec, cfg *rest.Config) (cache.ListerWatcher, error) {
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	core := typed.CoreV1()
	switch s.Resource {
	case "pods":
		pods := core.Pods(s.Namespace)
		return listWatch(typed, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) }, pods.Watch), nil
	case "configmaps":
		maps := core.ConfigMaps(s.Namespace)
		return listWatch(typed, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return maps.List(ctx, o) }, maps.Watch), nil
	case workload.Gadgets.Resource:
		untyped, err := dynamic.NewForConfig(cfg)
		if err != nil {
			return nil, err
		}
		gadgets := untyped.Resource(workload.Gadgets).Namespace(s.Namespace)
		return listWatch(untyped, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return gadgets.List(ctx, o) }, gadgets.Watch), nil
	}
	return nil, fmt.Errorf("unknown resource %q", s.Resource)
}

func listWatch(client any, list cache.ListWithContextFunc, watch cache.WatchFuncWithContext) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: watch}, client)
}

// pinned lists the past: what was at one resourceVersion, from etcd. Its watch
// begins when the gate opens, with the backlog that has come since.
type pinned struct {
	cache.ListerWatcher
	from string
	gate chan struct{}
}

// IsWatchListSemanticsUnSupported makes client-go's reflector list.
func (p *pinned) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext implements cache.ListerWithContext.
func (p *pinned) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.Continue == "" && (o.ResourceVersion == "" || o.ResourceVersion == "0") {
		o.ResourceVersion, o.ResourceVersionMatch = p.from, metav1.ResourceVersionMatchExact
		o.Limit = exactListLimit
	}
	return cache.ToListerWatcherWithContext(p.ListerWatcher).ListWithContext(ctx, o)
}

// WatchWithContext implements cache.WatcherWithContext.
func (p *pinned) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	select {
	case <-p.gate:
		return cache.ToListerWatcherWithContext(p.ListerWatcher).WatchWithContext(ctx, o)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
