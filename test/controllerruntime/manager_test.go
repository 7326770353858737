package controllerruntime_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/controllerruntime"
)

// TestAManagerThatIsMisusedReturnsErrors, as that of controller-runtime.
func TestAManagerThatIsMisusedReturnsErrors(t *testing.T) {
	if _, err := controllerruntime.NewManager(nil, ctrl.Options{}, newPath(t), warmwatch.Options{}); err == nil {
		t.Error("no config, and no error")
	}
	op := launch(t, newPath(t), -1, newWorld(t))
	if err := op.manager.Start(t.Context()); err == nil {
		t.Error("a second start, and no error")
	}
	if len(op.manager.Opened().Status().Informers) == 0 {
		t.Error("the second start has ended the informers of the first")
	}
	op.stop()
}

// TestACacheNeedsTheLeaseAsControllerRuntimesDoes, where it is added to a manager by hand.
func TestACacheNeedsTheLeaseAsControllerRuntimesDoes(t *testing.T) {
	needs := func(m ctrl.Manager) bool {
		r, says := m.GetCache().(manager.LeaderElectionRunnable)
		return !says || r.NeedLeaderElection()
	}
	for name, namespaces := range map[string]map[string]cache.Config{"one": nil, "of namespaces": {"default": {}}} {
		o := ctrl.Options{Metrics: server.Options{BindAddress: "0"}, Logger: logr.Discard(), Cache: cache.Options{DefaultNamespaces: namespaces}}
		stock, err := ctrl.NewManager(shared.Config(), o)
		if err != nil {
			t.Fatal(err)
		}
		m, err := controllerruntime.NewManager(shared.Config(), o, newPath(t), warmwatch.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if want := needs(stock); needs(m) != want {
			t.Errorf("%s: expected %v", name, want)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// world is what the tests have on the server: two namespaces that the operator watches, and
// another one.
type world struct {
	t                      *testing.T
	client                 client.Client
	here, there, elsewhere string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	httpClient, err := rest.HTTPClientFor(shared.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) })
	c, err := client.New(shared.Config(), client.Options{HTTPClient: httpClient})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, client: c}
	for _, name := range []*string{&w.here, &w.there, &w.elsewhere} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "operator-"}}
		w.create(namespace)
		*name = namespace.Name
	}
	return w
}

func (w *world) create(object client.Object) {
	w.t.Helper()
	if err := w.client.Create(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) delete(object client.Object) {
	w.t.Helper()
	if err := w.client.Delete(w.t.Context(), object, client.GracePeriodSeconds(0)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) update(object client.Object) {
	w.t.Helper()
	if err := w.client.Update(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

func meta(namespace, name, color string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"color": color}}
}

func configMap(namespace, name, color string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: meta(namespace, name, color), Data: map[string]string{"color": color}}
}

func secret(namespace, name, color string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: meta(namespace, name, color), Data: map[string][]byte{"key": []byte("value")}}
}

func pod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: meta(namespace, name, "red"), Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}
}

// watchedNamespace is one that the selector of the operator takes.
func (w *world) watchedNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.here + "-" + name, Labels: map[string]string{"watched": w.here}}}
}

// fill creates the same objects in each namespace, and two watched Namespaces.
func (w *world) fill() {
	w.t.Helper()
	for _, namespace := range []string{w.here, w.there, w.elsewhere} {
		for _, object := range []client.Object{
			configMap(namespace, "a", "red"), configMap(namespace, "b", "blue"), configMap(namespace, "c", "red"),
			secret(namespace, "red", "red"), secret(namespace, "blue", "blue"),
			pod(namespace, "bound", "node"), pod(namespace, "elsewhere", "another"),
		} {
			w.create(object)
		}
	}
	w.create(w.watchedNamespace("x"))
	w.create(w.watchedNamespace("y"))
}

// contents returns the names of all that the cache of an operator has. What a transform should
// have removed is added to them.
func (w *world) contents(op *operator) map[string]string {
	w.t.Helper()
	contents := map[string]string{}
	list := func(what string, into client.ObjectList, options ...client.ListOption) {
		w.t.Helper()
		if err := op.manager.GetCache().List(w.t.Context(), into, options...); err != nil {
			w.t.Fatal(err)
		}
		var names []string
		err := apimeta.EachListItem(into, func(item runtime.Object) error {
			object := item.(client.Object)
			name := w.relative(client.ObjectKeyFromObject(object).String())
			if object.GetManagedFields() != nil {
				name += " with managed fields"
			}
			if secret, ok := object.(*corev1.Secret); ok && secret.Data != nil {
				name += " with data"
			}
			names = append(names, name)
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
		slices.Sort(names)
		contents[what] = strings.Join(names, " ")
	}
	for form, object := range forms() {
		list(form, listOf(object))
	}
	list("red", &corev1.ConfigMapList{}, client.MatchingFields{byColor: "red"})
	list("red there", &corev1.ConfigMapList{}, client.MatchingFields{byColor: "red"}, client.InNamespace(w.there))
	list("Pods", &corev1.PodList{})
	list("Secrets", &corev1.SecretList{})
	list("Namespaces", &corev1.NamespaceList{})
	return contents
}

// relative makes the names of the namespaces those of the test.
func (w *world) relative(text string) string {
	return strings.NewReplacer(w.here, "here", w.there, "there", w.elsewhere, "elsewhere").Replace(text)
}

// expect waits until the cache of an operator has what it should.
func (w *world) expect(op *operator, want map[string]string) {
	w.t.Helper()
	for _, form := range []string{"unstructured", "metadata"} {
		want[form] = want["typed"]
	}
	w.eventually(func() string { return cmp.Diff(want, w.contents(op)) })
}

// TestAManagerIsRestarted: it asks for no list, and its reconcilers are notified of what there is then.
func TestAManagerIsRestarted(t *testing.T) {
	for _, stale := range []time.Duration{-1, 0} {
		t.Run(fmt.Sprintf("ServeStaleAfter %d", stale), func(t *testing.T) {
			w, path := newWorld(t), newPath(t)
			w.fill()
			op := launch(t, path, stale, w)
			if lists, informers := op.takeLists(), len(op.manager.Opened().Status().Informers); len(lists) < informers || informers == 0 {
				t.Errorf("%d informers have asked for %q only: are requests counted?", informers, lists)
			}
			w.expect(op, map[string]string{
				"typed":      "here/a here/b here/c there/a there/b there/c",
				"red":        "here/a here/c there/a there/c",
				"red there":  "there/a there/c",
				"Pods":       "here/bound there/bound",
				"Secrets":    "here/red there/blue there/red",
				"Namespaces": "/here-x /here-y",
			})
			for form := range forms() {
				op.expectDelivered(form+" here/a is red", form+" there/b is blue")
			}
			op.stop()

			w.delete(configMap(w.here, "a", ""))
			w.create(configMap(w.here, "d", "red"))
			w.update(configMap(w.there, "b", "green"))
			w.delete(secret(w.there, "blue", ""))
			w.delete(pod(w.here, "bound", ""))
			left := w.watchedNamespace("x")
			left.Labels = nil
			w.update(left)

			op = launch(t, path, stale, w)
			for form := range forms() {
				op.expectDelivered(form+" here/c is red", form+" here/d is red", form+" there/b is green")
			}
			w.expect(op, map[string]string{
				"typed":      "here/b here/c here/d there/a there/b there/c",
				"red":        "here/c here/d there/a there/c",
				"red there":  "there/a there/c",
				"Pods":       "there/bound",
				"Secrets":    "here/red there/red",
				"Namespaces": "/here-y",
			})
			if stale == 0 && op.wasDelivered("typed there/b is blue") {
				t.Error("a reconciler has seen what the server had before")
			}
			op.expectResumed()
		})
	}
}

// TestAnInformerIsRemovedAndMadeAnew: the new one goes on from the file. A handler of it is not notified of what was
// deleted in between.
func TestAnInformerIsRemovedAndMadeAnew(t *testing.T) {
	w := newWorld(t)
	w.fill()
	op := launch(t, newPath(t), 0, w)
	op.takeLists()
	removed, err := op.manager.GetCache().GetInformer(t.Context(), &corev1.Secret{})
	if err != nil {
		t.Fatal(err)
	}
	if err := op.manager.GetCache().RemoveInformer(t.Context(), &corev1.Secret{}); err != nil {
		t.Fatal(err)
	}
	for !removed.IsStopped() {
		time.Sleep(time.Millisecond)
	}
	w.delete(secret(w.here, "red", ""))
	op.addHandler(&corev1.Secret{})
	w.delete(secret(w.there, "red", ""))
	op.expectDelivered("OnDelete there/red")
	if op.wasDelivered("OnDelete here/red") {
		t.Error("a handler was notified of the deletion of what it never knew")
	}
	var secrets corev1.SecretList
	if err := op.manager.GetCache().List(t.Context(), &secrets); err != nil || len(secrets.Items) != 1 {
		t.Errorf("%d Secrets, %v", len(secrets.Items), err)
	}
	if lists := op.takeLists(); lists != nil {
		t.Errorf("lists: %q", lists)
	}
}

// TestADurableHandlerOfAManager is notified of each change once, over restarts.
func TestADurableHandlerOfAManager(t *testing.T) {
	w, path := newWorld(t), newPath(t)
	w.fill()
	life := func() *operator {
		op := launch(t, path, 0, w)
		informer, err := op.manager.GetCache().GetInformer(t.Context(), &corev1.Namespace{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = informer.(*warmwatch.SharedIndexInformer).AddDurableEventHandler("names", toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { op.tell("OnAdd " + obj.(*corev1.Namespace).Name) },
		}, warmwatch.DurableOptions{})

		if err != nil {
			t.Fatal(err)
		}
		return op
	}
	op := life()
	op.expectDelivered("OnAdd here-x", "OnAdd here-y")
	op.stop()
	w.create(w.watchedNamespace("z"))
	op = life()
	op.expectDelivered("OnAdd here-z")
	if op.wasDelivered("OnAdd here-x") {
		t.Error("delivered again")
	}
}

// TestAReconcileThatOutlivesTheManagerFindsWhatItReads: Start returns the error that it has not ended; without a
// GracefulShutdownTimeout it returns at once, and nil.
func TestAReconcileThatOutlivesTheManagerFindsWhatItReads(t *testing.T) {
	for _, grace := range []time.Duration{100 * time.Millisecond, 0} {
		t.Run(grace.String(), func(t *testing.T) { checkReconcileOutlivesManager(t, grace) })
	}
}

func checkReconcileOutlivesManager(t *testing.T, grace time.Duration) {
	w := newWorld(t)
	w.create(configMap(w.here, "a", "red"))
	m, err := controllerruntime.NewManager(shared.Config(), ctrl.Options{
		Metrics: server.Options{BindAddress: "0"}, Logger: logr.Discard(), GracefulShutdownTimeout: new(grace),
		Controller: config.Controller{SkipNameValidation: new(true)},
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{w.here: {}}},
	}, newPath(t), warmwatch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	begun, goOn, listed := make(chan struct{}), make(chan struct{}), make(chan string, 1)
	var once sync.Once
	reconciles := reconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) {
		once.Do(func() {
			close(begun)
			<-goOn // It does not look at its context.
			list := &corev1.ConfigMapList{}
			err := m.GetClient().List(context.Background(), list)
			listed <- fmt.Sprint(len(list.Items), " ", err)
		})
		return ctrl.Result{}, nil
	})
	if err := ctrl.NewControllerManagedBy(m).For(&corev1.ConfigMap{}).Complete(reconciles); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan error, 1)
	go func() { started <- m.Start(ctx) }()
	<-begun
	cancel()
	if err := <-started; (err != nil) != (grace > 0) {
		t.Errorf("Start says of a reconcile that has not ended: %v", err)
	}
	close(goOn)
	if got := <-listed; got != "1 <nil>" {
		t.Errorf("the reconcile has listed %s", got)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
