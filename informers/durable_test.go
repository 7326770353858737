package informers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/informers"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

// reconciles has what a reconciler was called for, and how it answers.
type reconciles struct {
	mu     sync.Mutex
	called []string
	err    error
	after  time.Duration
	end    context.Context // Of the last call.
}

func (r *reconciles) reconcile(ctx context.Context, req warmwatch.ReconcileRequest) (warmwatch.ReconcileResult, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	call := req.Name
	for _, deleted := range req.Deleted {
		call += fmt.Sprintf(", deleted as %q", deleted.(*corev1.Pod).Labels["is"])
	}
	r.called, r.end = append(r.called, call), ctx
	return warmwatch.ReconcileResult{After: r.after}, r.err
}

// answer has later calls return these.
func (r *reconciles) answer(after time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.after, r.err = after, err
}

// expect waits until nothing happens any more, and compares what has happened since the last time.
func (r *reconciles) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.called)
	if d := cmp.Diff(want, r.called); d != "" {
		t.Errorf("reconciled (-want +got):\n%s", d)
	}
	r.called = nil
}

func pod(name, is string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"is": is}}}
}

var quiet = cache.HandlerOptions{Logger: &testsupport.Quiet}

// TestAReconcilerOfClientGosOwnInformerWorksInMemory, and ends with the informer.
func TestAReconcilerOfClientGosOwnInformerWorksInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(pod("a", "old"), pod("b", "old"))
		factory := clientinformers.NewSharedInformerFactory(client, 0)
		informer := factory.Core().V1().Pods().Informer()
		var done reconciles
		other := make(chan struct{}) // Another cache.
		o := warmwatch.ReconcilerOptions{DurableOptions: warmwatch.DurableOptions{HandlerOptions: quiet}, WaitFor: []cache.DoneChecker{checker(other)}}
		r, err := informers.AddReconciler(informer, "name", done.reconcile, o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		factory.StartWithContext(ctx)
		synctest.Wait()
		if !r.HasSynced() {
			t.Error("not all objects are in its queue")
		}
		done.expect(t)
		close(other)
		done.expect(t, "a", "b")

		pods := client.CoreV1().Pods("ns")
		update := func(pod *corev1.Pod) {
			t.Helper()
			if _, err := pods.Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		remove := func(name string) {
			t.Helper()
			if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		update(pod("a", "new"))
		done.expect(t, "a")
		remove("a")
		done.expect(t, `a, deleted as "new"`)
		r.Enqueue(cache.ObjectName{Name: "owner"}, cache.ObjectName{Namespace: "ns", Name: "a"})
		done.expect(t, "a", "owner") // The deletion is done.

		// After an error it is called again, with the deletions that are not done.
		done.answer(0, errors.New("no"))
		remove("b")
		done.expect(t, `b, deleted as "old"`)
		if _, err := pods.Create(ctx, pod("b", "another"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		remove("b")
		synctest.Wait()
		done.answer(0, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		done.mu.Lock()
		if last, want := done.called[len(done.called)-1], `b, deleted as "old", deleted as "another"`; last != want {
			t.Errorf("at last %s, expected %s", last, want)
		}
		done.called = nil
		done.mu.Unlock()
		time.Sleep(time.Hour)
		done.expect(t)

		done.answer(time.Hour, nil)
		r.Enqueue(cache.ObjectName{Name: "again"})
		done.expect(t, "again")
		done.answer(0, nil)
		time.Sleep(time.Hour - 1)
		done.expect(t)
		time.Sleep(time.Nanosecond)
		done.expect(t, "again")

		cancel()
		factory.Shutdown()
		synctest.Wait()
		r.Enqueue(cache.ObjectName{Name: "late"})
		done.expect(t)
		if done.end.Err() == nil {
			t.Error("the context of a reconcile has not ended")
		}
		if _, err := informers.AddReconciler(informer, "late", done.reconcile, o); err == nil {
			t.Error("an informer that has ended takes a reconciler")
		}
	})
}

// TestAReconcilerInMemoryLeavesWhatWaits when its informer ends, also before it has begun.
func TestAReconcilerInMemoryLeavesWhatWaits(t *testing.T) {
	for _, begins := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			factory := clientinformers.NewSharedInformerFactory(fake.NewClientset(pod("a", ""), pod("b", "")), 0)
			informer := factory.Core().V1().Pods().Informer()
			other := make(chan struct{})
			if begins {
				close(other)
			}
			calls := 0
			_, err := informers.AddReconciler(informer, "name", func(ctx context.Context, _ warmwatch.ReconcileRequest) (warmwatch.ReconcileResult, error) {
				calls++
				<-ctx.Done()
				return warmwatch.ReconcileResult{}, ctx.Err()
			}, warmwatch.ReconcilerOptions{DurableOptions: warmwatch.DurableOptions{HandlerOptions: quiet}, WaitFor: []cache.DoneChecker{checker(other)}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			factory.StartWithContext(ctx)
			synctest.Wait()
			cancel()
			factory.Shutdown()
			synctest.Wait() // All goroutines have to end.
			if want := map[bool]int{true: 1}[begins]; calls != want {
				t.Errorf("%d calls, expected %d", calls, want)
			}
		})
	}
}

// TestAReconcilerOfAnInformerOfTheCacheIsItsOwn.
func TestAReconcilerOfAnInformerOfTheCacheIsItsOwn(t *testing.T) {
	a := newAgent(t, testsupport.Path(t), httpserver.New(t, "one"))
	factory := a.factory()
	pods := factory.Core().V1().Pods().Informer()
	called := make(chan cache.ObjectName, 1)
	reconcile := func(_ context.Context, req warmwatch.ReconcileRequest) (warmwatch.ReconcileResult, error) {
		called <- req.ObjectName
		return warmwatch.ReconcileResult{}, nil
	}
	r, err := informers.AddReconciler(pods, "name", reconcile, warmwatch.ReconcilerOptions{})
	if _, ours := r.(*warmwatch.Reconciler); !ours || err != nil {
		t.Fatalf("%T, %v", r, err)
	}
	if r, err := informers.AddReconciler(pods, "name", reconcile, warmwatch.ReconcilerOptions{}); r != nil || !errors.Is(err, warmwatch.ErrInUse) {
		t.Errorf("a second one of the name: %v, %v", r, err)
	}
	a.run(factory, pods)
	if got, want := <-called, (cache.ObjectName{Namespace: "ns", Name: "a"}); got != want {
		t.Errorf("%v was reconciled, expected %v", got, want)
	}
}

func TestAReconcilerHasANameAndAFunction(t *testing.T) {
	informer := clientinformers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Pods().Informer()
	reconcile := (&reconciles{}).reconcile
	for what, err := range map[string]error{
		"a name":           second(informers.AddReconciler(informer, "", reconcile, warmwatch.ReconcilerOptions{})),
		"a function":       second(informers.AddReconciler(informer, "name", nil, warmwatch.ReconcilerOptions{})),
		"negative workers": second(informers.AddReconciler(informer, "name", reconcile, warmwatch.ReconcilerOptions{Workers: -1})),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// checker is a DoneChecker.
type checker chan struct{}

func (c checker) Name() string          { return "checker" }
func (c checker) Done() <-chan struct{} { return c }
