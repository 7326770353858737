package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// changers is how many requests are under way at once.
const changers = 4

// changer makes random changes to the ConfigMaps of a namespace.
type changer struct {
	client typedcorev1.ConfigMapInterface
	// names that each worker uses. No two workers share one.
	names int
	// sizeBytes of the objects, at most.
	sizeBytes int

	rands  [changers]*rand.Rand
	exists [changers][]bool
	serial atomic.Int64
	made   atomic.Int64
	failed atomic.Pointer[error]

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// newChanger returns a changer of as many names as each worker is to use.
func newChanger(client kubernetes.Interface, namespace string, names int, seed uint64) *changer {
	c := &changer{client: client.CoreV1().ConfigMaps(namespace), names: names, sizeBytes: 2000}
	for w := range changers {
		c.rands[w] = rand.New(rand.NewPCG(seed, uint64(w)+1))
		c.exists[w] = make([]bool, c.names)
	}
	return c
}

// make makes n changes.
func (c *changer) make(t *testing.T, n int) {
	t.Helper()
	c.work(t.Context(), int64(n))
	c.wg.Wait()
	c.check(t)
}

// begin makes changes until end.
func (c *changer) begin(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c.cancel = cancel
	t.Cleanup(func() {
		cancel()
		c.wg.Wait()
	})
	c.work(ctx, 1<<62)
}

func (c *changer) end(t *testing.T) {
	t.Helper()
	c.cancel()
	c.wg.Wait()
	c.check(t)
}

func (c *changer) check(t *testing.T) {
	t.Helper()
	if err := c.failed.Load(); err != nil {
		t.Fatalf("change: %v", *err)
	}
}

// await waits until n changes more were made.
func (c *changer) await(t *testing.T, n int) {
	t.Helper()
	until := c.made.Load() + int64(n)
	eventuallyTrue(t, fmt.Sprintf("%d changes", n), func() bool { return c.made.Load() >= until || c.failed.Load() != nil })
	c.check(t)
}

func (c *changer) work(ctx context.Context, n int64) {
	var left atomic.Int64
	left.Store(n)
	for w := range changers {
		c.wg.Go(func() {
			for left.Add(-1) >= 0 && ctx.Err() == nil {
				// A request under way is not to be given up: its outcome would be unknown.
				if err := c.change(context.WithoutCancel(ctx), w); err != nil {
					c.failed.Store(&err)
					return
				}
				c.made.Add(1)
			}
		})
	}
}

// change makes one change. It may find that the last one, of which no answer
// came, was made.
func (c *changer) change(ctx context.Context, w int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	rng, serial := c.rands[w], c.serial.Add(1)
	i := rng.IntN(c.names)
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("object-%d-%d", w, i), Labels: map[string]string{"third": fmt.Sprint(i % 3)}},
		Data:       map[string]string{"serial": fmt.Sprint(serial), "filling": filling(rng, rng.IntN(c.sizeBytes))},
	}
	var err error
	switch exists := &c.exists[w][i]; {
	case !*exists:
		_, err = c.client.Create(ctx, object, metav1.CreateOptions{})
		*exists = err == nil || apierrors.IsAlreadyExists(err)
	case rng.IntN(10) < 7:
		_, err = c.client.Update(ctx, object, metav1.UpdateOptions{})
		*exists = !apierrors.IsNotFound(err)
	default:
		err = c.client.Delete(ctx, object.Name, metav1.DeleteOptions{})
		*exists = err != nil && !apierrors.IsNotFound(err)
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// filling is text that cannot be compressed much.
func filling(rng *rand.Rand, sizeBytes int) string {
	b := make([]byte, sizeBytes)
	for i := range b {
		b[i] = byte(' ' + rng.IntN('~'-' '))
	}
	return string(b)
}
