package warmwatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/queue"
)

const (
	// comparePause between two pages, so that neither the server nor handlers notice.
	comparePause = time.Second
	// comparePageItems are asked for at once.
	comparePageItems = 500
	// compareRetry after a comparison that was cut.
	compareRetry = time.Hour
)

// compareContents keeps the content of objects right that the server says in another way
// at the same resourceVersion: no event tells of a default that a CustomResourceDefinition
// got, or of another conversion. client-go finds out with the list of its next start, and
// an informer that resumes has none. So once in MaxAge, counted from the last full list,
// the objects are listed in pages with pauses, beside the watch, and those that have the
// same uid and resourceVersion and other content are told as updates.
func (s *SharedIndexInformer) compareContents(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	maxAge := s.cache.opts.MaxAge
	if maxAge < 0 {
		return
	}
	for {
		due, _ := s.sink.compareDue(maxAge)
		// Informers that started together do not ask together.
		if !pause(ctx, max(due, verifyDelay)+rand.N(maxAge/8+1)) {
			return
		}
		if due, complete := s.sink.compareDue(maxAge); due > 0 || !complete { // Listed meanwhile, or not yet.
			continue
		}
		for err := s.comparePages(ctx); err != nil; err = s.comparePages(ctx) {
			s.logger.V(2).Info("Could not compare the contents of all objects, trying again", "err", err)
			if !pause(ctx, compareRetry) {
				return
			}
		}
	}
}

// pause reports whether to go on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *SharedIndexInformer) comparePages(ctx context.Context) error {
	lw := cache.ToListerWatcherWithContext(s.lw)
	o := metav1.ListOptions{Limit: comparePageItems}
	for {
		list, err := lw.ListWithContext(ctx, o)
		if o.Continue != "" && err != nil {
			// The pages took too long. The server says how to go on with newer ones:
			// to this comparison it does not matter that they are of another moment.
			var status apierrors.APIStatus
			if !errors.As(err, &status) || status.Status().Continue == "" {
				return err
			}
			o.Continue = status.Status().Continue
			if list, err = lw.ListWithContext(ctx, o); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		m, err := meta.ListAccessor(list)
		if err != nil {
			return err
		}
		if err := meta.EachListItemWithAlloc(list, s.sink.compareContent); err != nil {
			return err
		}
		if o.Continue = m.GetContinue(); o.Continue == "" {
			return s.sink.contentsCompared()
		}
		if !pause(ctx, comparePause) {
			return ctx.Err()
		}
	}
}

// compareContent puts an object into the store if that has it in the same version and
// with other content. All other differences the watch tells.
func (k *sink) compareContent(obj runtime.Object) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isClosed {
		return errSinkClosed
	}
	if !k.complete || !k.expected(obj) {
		return nil
	}
	transformed, key, err := k.prepareLocked(obj)
	if err != nil {
		return nil //nolint:nilerr // An event with this object has failed in the same way, and is in Status.
	}
	w := k.writer()
	defer w.Close()
	value := k.s.indexer.NewValue(transformed)
	if !differs(w, key, value) {
		return nil
	}
	c := w.SetValue(key, value, true)
	k.s.detector.AddObject(c.New)
	d := setDelta(c)
	if d.Type == cache.Sync {
		d.Type = cache.Updated
	}
	return k.writeLocked(w, []queue.Delta{d})
}

// compareDue says in how long all contents are to be compared, and whether there is a
// whole store to compare.
func (k *sink) compareDue(maxAge time.Duration) (due time.Duration, complete bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Until(k.record.LastFullList.Add(maxAge)), k.complete
}

// contentsCompared notes that all contents are those of the server.
func (k *sink) contentsCompared() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isClosed {
		return errSinkClosed
	}
	k.record.LastFullList = time.Now()
	return k.storeLocked()
}
