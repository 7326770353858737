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
	// comparePause separates two pages, so that neither the server nor handlers notice.
	comparePause = time.Second
	// comparePageItems is the size of a page.
	comparePageItems = 500
	// compareRetry is the pause after a comparison that failed.
	compareRetry = time.Hour
)

// compareContents finds objects whose content the server has changed at the same
// resourceVersion: no event tells of a new default in a CustomResourceDefinition, or of
// another conversion. client-go finds out with the list of its next start, but an informer
// that resumes does not list. So once in MaxAge, counted from the last full list, the
// objects are listed in pages with pauses, beside the watch. Handlers are told by OnUpdate
// of those that have the same uid and resourceVersion and other content.
func (s *SharedIndexInformer) compareContents(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	maxAge := s.cache.opts.MaxAge
	if maxAge < 0 {
		return
	}
	for {
		due, _ := s.sink.compareDue(maxAge)
		// The random part spreads the lists of informers that started together.
		if !pause(ctx, max(due, verifyDelay)+rand.N(maxAge/8+1)) {
			return
		}
		if due, complete := s.sink.compareDue(maxAge); due > 0 || !complete { // A relist came first, or is not done yet.
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

// pause waits for d, and reports false if ctx was done first.
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
			// The pages have expired, and the server offers to go on with newer ones.
			// The comparison can use them, because it looks at each object alone.
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

// compareContent puts an object into the store if the store has the same version of it with
// other content. The watch tells of all other differences.
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
		return nil //nolint:nilerr // The event with this object failed in the same way, and Status says so.
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

// compareDue returns the time until the next comparison, and whether the store is complete.
func (k *sink) compareDue(maxAge time.Duration) (due time.Duration, complete bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Until(k.record.LastFullList.Add(maxAge)), k.complete
}

// contentsCompared notes that the contents of all objects have been compared.
func (k *sink) contentsCompared() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isClosed {
		return errSinkClosed
	}
	k.record.LastFullList = time.Now()
	return k.storeLocked()
}
