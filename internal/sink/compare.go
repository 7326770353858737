package sink

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

	"github.com/warmwatch/warmwatch/internal/checkpoint"
	"github.com/warmwatch/warmwatch/internal/indexer"
	"github.com/warmwatch/warmwatch/internal/record"
)

const (
	// comparePause separates two pages, so that neither the server nor handlers notice.
	comparePause = time.Second
	// comparePageItems is the size of a page.
	comparePageItems = 500
	// compareDelay is the least time from a start to a comparison.
	compareDelay = 10 * time.Second
	// compareRetry is the pause after a comparison that failed.
	compareRetry = time.Hour
)

// CompareContents finds objects whose content the server has changed at the same
// resourceVersion: no event tells of a new default in a CustomResourceDefinition, or of
// another conversion. client-go finds out with the list of its next start, but an informer
// that resumes does not list. So once in MaxAge, counted from the last full list, the
// objects are listed in pages with pauses, beside the watch. Handlers are told by OnUpdate
// of those that have the same uid and resourceVersion and other content.
func (k *Sink) CompareContents(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	if k.maxAge < 0 {
		return
	}
	for {
		due, _ := k.compareDue()
		// The random part spreads the lists of informers that started together.
		if !pause(ctx, max(due, compareDelay)+rand.N(k.maxAge/8+1)) {
			return
		}
		if due, complete := k.compareDue(); due > 0 || !complete { // A relist came first, or is not done yet.
			continue
		}
		for err := k.comparePages(ctx); err != nil; err = k.comparePages(ctx) {
			k.logger.V(2).Info("Could not compare the contents of all objects, trying again", "err", err)
			if !pause(ctx, compareRetry) {
				return
			}
		}
	}
}

// pause waits for d, and reports false if ctx was done first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (k *Sink) comparePages(ctx context.Context) error {
	o := metav1.ListOptions{Limit: comparePageItems}
	for {
		list, err := k.lw.ListWithContext(ctx, o)
		if o.Continue != "" && err != nil {
			// The pages have expired, and the server offers to go on with newer ones.
			// The comparison can use them, because it looks at each object alone.
			var status apierrors.APIStatus
			if !errors.As(err, &status) || status.Status().Continue == "" {
				return err
			}
			o.Continue = status.Status().Continue
			if list, err = k.lw.ListWithContext(ctx, o); err != nil {
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
		if err := meta.EachListItemWithAlloc(list, k.compareContent); err != nil {
			return err
		}
		if o.Continue = m.GetContinue(); o.Continue == "" {
			return k.contentsCompared()
		}
		if !pause(ctx, comparePause) {
			return ctx.Err()
		}
	}
}

// compareContent puts an object into the store if the store has the same version of it with
// other content, or an older one than the checkpoint covers. The watch tells of all other
// differences.
func (k *Sink) compareContent(obj runtime.Object) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return errStopped
	}
	if !k.complete || k.unexpected(obj, false) != nil {
		return nil
	}
	transformed, key, err := k.transformLocked(obj)
	if err != nil {
		return nil //nolint:nilerr // The event with this object failed in the same way, and Status says so.
	}
	w := k.writer()
	defer w.Close()
	value := k.indexer.NewValue(transformed)
	if !differs(w, key, value) && !k.isOldLocked(w, key, value) {
		return nil
	}
	k.record.ServerSchema = "" // Objects of another one may be stored now.
	c := w.SetValue(key, value, true)
	k.detector.AddObject(c.New)
	defer clear(k.deltas[:])
	ds := k.setDeltas(w, c, k.deltas[:0])
	if d := &ds[len(ds)-1]; d.Type == cache.Sync {
		d.Type = cache.Updated // The version is the same, the content is not.
	}
	return k.writeLocked(w, ds)
}

// isOldLocked reports whether the store has an older version of an object, although the
// checkpoint covers the one that the server has: the disk has lost a write, and what was in
// its place before has all its checksums, too.
func (k *Sink) isOldLocked(w *indexer.Writer, key string, value *record.Object) bool {
	_, rv := value.Head()
	_, storedRV, exists := w.Head(key)
	return exists && k.trusted && isBefore(storedRV, rv) && !isBefore(k.record.ResourceVersion, rv)
}

// isBefore is false where versions cannot be compared.
func isBefore(a, b string) bool {
	order, ok := checkpoint.CompareVersions(a, b)
	return ok && order < 0
}

// compareDue returns the time until the next comparison, and whether the store is complete. The
// clock may have gone back since the last process noted its list.
func (k *Sink) compareDue() (due time.Duration, complete bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return min(k.maxAge, time.Until(k.record.LastFullList.Add(k.maxAge))), k.complete
}

// contentsCompared notes that the contents of all objects have been compared.
func (k *Sink) contentsCompared() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return errStopped
	}
	k.record.LastFullList = time.Now()
	return k.storeLocked()
}
