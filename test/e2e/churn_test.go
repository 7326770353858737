package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// churn changes the objects of all soaked resources, not through the link.
type churn struct {
	client    dynamic.Interface
	namespace string
	workers   []*churner
	cancel    context.CancelFunc
	wg        sync.WaitGroup
}

const (
	churnNames = 60 // Of each resource.
	churnPause = 15 * time.Millisecond
)

func newChurn(client dynamic.Interface, namespace string, seed uint64) *churn {
	c := &churn{client: client, namespace: namespace}
	for i, resource := range soaked {
		c.workers = append(c.workers, &churner{
			resource: resource.GroupVersionResource, rng: rand.New(rand.NewPCG(seed, uint64(i)+100)), exists: map[string]bool{},
		})
	}
	return c
}

// begin makes changes until end.
func (c *churn) begin(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c.cancel = cancel
	c.work(ctx, 1<<30, churnPause)
}

// make makes n changes of each resource.
func (c *churn) make(t *testing.T, n int) {
	t.Helper()
	c.work(t.Context(), n, 0)
	c.wg.Wait()
	c.check(t)
}

func (c *churn) work(ctx context.Context, n int, pause time.Duration) {
	for _, w := range c.workers {
		client := c.client.Resource(w.resource).Namespace(c.namespace)
		c.wg.Go(func() {
			for range n {
				// A request under way is not given up: its outcome would be unknown.
				if w.err = w.change(context.WithoutCancel(ctx), client); w.err != nil {
					return
				}
				select {
				case <-time.After(pause):
				case <-ctx.Done():
					return
				}
			}
		})
	}
}

// end is idempotent.
func (c *churn) end(t *testing.T) {
	t.Helper()
	if c.cancel != nil {
		c.cancel()
	}
	c.wg.Wait()
	c.check(t)
}

func (c *churn) check(t *testing.T) {
	t.Helper()
	for _, w := range c.workers {
		if w.err != nil {
			t.Fatalf("change %s: %v", w.resource.Resource, w.err)
		}
	}
}

// counts are of all resources.
func (c *churn) counts() (made, deleted, anew int) {
	for _, w := range c.workers {
		made, deleted, anew = made+w.made, deleted+w.deleted, anew+w.anew
	}
	return made, deleted, anew
}

// churner changes the objects of one resource.
type churner struct {
	resource            schema.GroupVersionResource
	rng                 *rand.Rand
	exists              map[string]bool // As far as is known.
	serial              int
	made, deleted, anew int
	err                 error
}

// body is a new content of an object.
func (w *churner) body(number int) *unstructured.Unstructured {
	w.serial++
	u := &unstructured.Unstructured{Object: map[string]any{}}
	text := strings.Repeat(fmt.Sprintf("%05d ", w.serial), 1+w.rng.IntN(120))
	switch w.resource {
	case widgets:
		u.Object["apiVersion"], u.Object["kind"] = "e2e.example.com/v1", "Widget"
		u.Object["spec"] = map[string]any{"serial": int64(w.serial), "filling": text}
	case secrets:
		u.Object["apiVersion"], u.Object["kind"] = "v1", "Secret"
		u.Object["stringData"] = map[string]any{"filling": text}
	default:
		u.Object["apiVersion"], u.Object["kind"] = "v1", "ConfigMap"
		u.Object["data"] = map[string]any{"filling": text}
	}
	u.SetName(fmt.Sprintf("object-%02d", number))
	u.SetLabels(map[string]string{"third": fmt.Sprint(number % 3)})
	return u
}

// change makes one change. It may find that etcd was put back.
func (w *churner) change(ctx context.Context, c dynamic.ResourceInterface) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	object := w.body(w.rng.IntN(churnNames))
	name, p := object.GetName(), w.rng.IntN(10)
	var err error
	switch {
	case !w.exists[name]:
		err = w.create(ctx, c, object)
	case p < 6:
		err = w.update(ctx, c, object)
	default:
		if err = c.Delete(ctx, name, metav1.DeleteOptions{}); err == nil {
			w.deleted++
			if p == 9 { // And made anew at once.
				w.anew++
				err = w.create(ctx, c, object)
			} else {
				w.exists[name] = false
			}
		}
	}
	switch {
	case apierrors.IsAlreadyExists(err):
		w.exists[name] = true
	case apierrors.IsNotFound(err):
		w.exists[name] = false
	case err != nil:
		return err
	}
	w.made++
	return nil
}

func (w *churner) create(ctx context.Context, c dynamic.ResourceInterface, object *unstructured.Unstructured) error {
	_, err := c.Create(ctx, object, metav1.CreateOptions{})
	w.exists[object.GetName()] = err == nil
	return err
}

// update replaces an object. That of a custom resource needs to know its version.
func (w *churner) update(ctx context.Context, c dynamic.ResourceInterface, object *unstructured.Unstructured) error {
	old, err := c.Get(ctx, object.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	object.SetResourceVersion(old.GetResourceVersion())
	_, err = c.Update(ctx, object, metav1.UpdateOptions{})
	return err
}
