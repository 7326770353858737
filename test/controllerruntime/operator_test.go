package controllerruntime_test

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2/ktesting"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/controllerruntime"
	"github.com/warmwatch/warmwatch/test/e2e/meter"
)

// byColor is a field index of the typed ConfigMaps.
const byColor = "data.color"

// forms are those of the ConfigMaps, which have a controller in each.
func forms() map[string]client.Object {
	u, m := &unstructured.Unstructured{}, &metav1.PartialObjectMetadata{}
	u.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	m.SetGroupVersionKind(u.GroupVersionKind())
	return map[string]client.Object{"typed": &corev1.ConfigMap{}, "unstructured": u, "metadata": m}
}

// listOf returns an empty list of ConfigMaps in one of the forms.
func listOf(form client.Object) client.ObjectList {
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMapList")
	switch form.(type) {
	case *unstructured.Unstructured:
		u := &unstructured.UnstructuredList{}
		u.SetGroupVersionKind(kind)
		return u
	case *metav1.PartialObjectMetadata:
		m := &metav1.PartialObjectMetadataList{}
		m.SetGroupVersionKind(kind)
		return m
	}
	return &corev1.ConfigMapList{}
}

// An operator is one life of a program with a manager.
type operator struct {
	t       *testing.T
	world   *world
	manager *controllerruntime.Manager
	stop    func() // Idempotent.

	mu        sync.Mutex
	lists     []string // Requests.
	delivered []string // What reconcilers have found, and handlers got.
}

// launch returns an operator whose caches have synced.
func launch(t *testing.T, path string, stale time.Duration, w *world) *operator {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.Verbosity(2)))
	op := &operator{t: t, world: w}
	cfg := shared.Config()
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return counted{next, op} })
	var err error
	op.manager, err = controllerruntime.NewManager(cfg, ctrl.Options{
		Cache:      cacheOptions(w.here, w.there),
		Metrics:    server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}, // The next life has the same names.
		Logger:     logger,
	}, path, warmwatch.Options{ServeStaleAfter: stale, Logger: &logger})
	if err != nil {
		t.Fatal(err)
	}
	op.addControllers()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := op.manager.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	op.stop = sync.OnceFunc(func() {
		op.expectHealthy()
		cancel()
		running.Wait()
		utilnet.CloseIdleConnectionsFor(op.manager.GetHTTPClient().Transport)
	})
	t.Cleanup(op.stop)
	for _, object := range []client.Object{&corev1.Secret{}, &corev1.Pod{}, &corev1.Namespace{}} {
		op.addHandler(object)
	}
	for _, object := range forms() { // Of the controllers.
		if _, err := op.manager.GetCache().GetInformer(ctx, object); err != nil {
			t.Fatal(err)
		}
	}
	if !op.manager.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the caches have not synced")
	}
	return op
}

// cacheOptions select by namespace, by label and by field.
func cacheOptions(here, there string) cache.Options {
	return cache.Options{
		DefaultNamespaces: map[string]cache.Config{here: {}, there: {}},
		DefaultTransform:  cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", "node")},
			&corev1.Secret{}: {
				Label:      labels.SelectorFromSet(labels.Set{"color": "red"}),
				Namespaces: map[string]cache.Config{here: {}, there: {LabelSelector: labels.Everything()}},
				Transform: func(obj any) (any, error) {
					obj.(*corev1.Secret).Data, obj.(*corev1.Secret).ManagedFields = nil, nil
					return obj, nil
				},
			},
			&corev1.Namespace{}: {Label: labels.SelectorFromSet(labels.Set{"watched": here})},
		},
	}
}

// addControllers adds one for each form of the ConfigMaps, and the index.
func (op *operator) addControllers() {
	for form, object := range forms() {
		look := func(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
			found := object.DeepCopyObject().(client.Object)
			switch err := op.manager.GetCache().Get(ctx, r.NamespacedName, found); {
			case apierrors.IsNotFound(err):
				op.tell(form + " " + r.String() + " is gone")
			case err != nil:
				return ctrl.Result{}, err
			default:
				op.tell(form + " " + r.String() + " is " + found.GetLabels()["color"])
			}
			return ctrl.Result{}, nil
		}
		if err := ctrl.NewControllerManagedBy(op.manager).Named(form).For(object).Complete(reconcile.Func(look)); err != nil {
			op.t.Fatal(err)
		}
	}
	color := func(object client.Object) []string { return []string{object.(*corev1.ConfigMap).Data["color"]} }
	if err := op.manager.GetFieldIndexer().IndexField(op.t.Context(), &corev1.ConfigMap{}, byColor, color); err != nil {
		op.t.Fatal(err)
	}
}

// addHandler adds one to the informer of an object, and returns once the informer has synced.
func (op *operator) addHandler(object client.Object) {
	op.t.Helper()
	informer, err := op.manager.GetCache().GetInformer(op.t.Context(), object)
	if err != nil {
		op.t.Fatal(err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		key, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(obj)
		if err != nil {
			op.t.Error(err)
		}
		op.tell("OnDelete " + key)
	}})
	if err != nil {
		op.t.Fatal(err)
	}
}

func (op *operator) tell(what string) {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.delivered = append(op.delivered, op.world.relative(what))
}

// counted notes the requests for lists, but for those of one object.
type counted struct {
	http.RoundTripper
	op *operator
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	if kind := meter.Kind(r); (kind == "list" || kind == "watchlist") && r.URL.Query().Get("limit") != "1" {
		c.op.mu.Lock()
		defer c.op.mu.Unlock()
		c.op.lists = append(c.op.lists, r.URL.String())
	}
	return c.RoundTripper.RoundTrip(r)
}

func (c counted) WrappedRoundTripper() http.RoundTripper { return c.RoundTripper }

// takeLists returns the requests for lists since the last call.
func (op *operator) takeLists() []string {
	op.mu.Lock()
	defer op.mu.Unlock()
	lists := op.lists
	op.lists = nil
	return lists
}

// expectDelivered waits until the reconcilers and handlers have heard of something.
func (op *operator) expectDelivered(what ...string) {
	op.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		op.mu.Lock()
		delivered := slices.Clone(op.delivered)
		op.mu.Unlock()
		missing := slices.DeleteFunc(slices.Clone(what), func(s string) bool { return slices.Contains(delivered, s) })
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			op.t.Fatalf("nobody was notified of %q, but of %q", missing, delivered)
		}
	}
}

func (op *operator) wasDelivered(what string) bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	return slices.Contains(op.delivered, what)
}

// expectResumed checks that every informer has gone on from the file, without a list.
func (op *operator) expectResumed() {
	op.t.Helper()
	if lists := op.takeLists(); lists != nil {
		op.t.Errorf("lists: %q", lists)
	}
	for id, informer := range op.manager.Opened().Status().Informers {
		if informer.StartedFrom != "disk" || informer.Relists != 0 {
			op.t.Errorf("%v started from %s, %d relists: %s, %s", id, informer.StartedFrom, informer.Relists, informer.Cause, informer.Reason)
		}
	}
}

// expectHealthy checks that no informer works from memory.
func (op *operator) expectHealthy() {
	op.t.Helper()
	for id, informer := range op.manager.Opened().Status().Informers {
		if informer.Err != nil {
			op.t.Errorf("%v: %v", id, informer.Err)
		}
	}
}

func newPath(t *testing.T) string { return filepath.Join(t.TempDir(), "cache.db") }
