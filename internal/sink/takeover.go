package sink

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// A BehindError says that a file has seen more of the server than the store: it has an object of this version, which the
// store has not come to, or which has no order.
type BehindError struct{ ResourceVersion string }

func (e *BehindError) Error() string {
	return fmt.Sprintf("the cache file has seen resourceVersion %s, to which the watch has not come yet", e.ResourceVersion)
}

// CheckTakeOver checks the store and what is owed as TakeOver does, and tells nobody.
func (k *Sink) CheckTakeOver(file *persist.Snapshot, seen string, decided bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.owedLocked(file, seen, decided)
	return err
}

// owedLocked returns what is owed to handlers by a file that could not be had at first, and whose space
// is about to be replaced by what is in memory. The handlers here were told of every object, so
// what is owed are deletions: those that wait in the file, and those of the objects in it that the
// store does not have.
//
// It fails until the store equals a list, and while objects are left out of it, which the file may
// have. If seen, or anything that is owed, is of a later version than the store, the file is ahead, and what the store
// lacks has perhaps not come yet: then it fails with a [BehindError], unless decided says that it does not exist.
func (k *Sink) owedLocked(file *persist.Snapshot, seen string, decided bool) (owed []queue.Delta, err error) {
	if err := k.checkReadyLocked(); err != nil {
		return nil, err
	}
	w := k.indexer.Writer()
	defer w.Close()
	check := func(rv string) error {
		order, ok := checkpoint.CompareVersions(rv, k.record.ResourceVersion)
		if decided || rv == "" || ok && order <= 0 { // Of what is damaged no version is known.
			return nil
		}
		return &BehindError{rv}
	}
	if err := check(seen); err != nil {
		return nil, err
	}
	err = k.indexer.Others(file, func(key string, uid types.UID, rv string, damaged bool, decode func() any) error {
		if has, _, exists := w.Head(key); exists && !isOther(has, uid) && (!damaged || has == "") {
			return nil // A damaged one may be of another object than the store has.
		}
		if err := check(rv); err != nil {
			return err
		}
		owed = append(owed, lostDelta(0, key, decode()))
		return nil
	})
	if err == nil {
		err = k.log.Deletions(file, func(d queue.Delta) error {
			// One that could not be read may be of another object than the store has.
			if has, _, exists := w.Head(d.Key); exists && d.New != nil && !isOther(has, uidOf(d.New)) {
				return nil
			}
			// Else the deletion would be told before the addition of the object.
			if err := check(resourceVersionOf(d.New)); err != nil {
				return err
			}
			// The other process saw this deletion. This one may have seen a later state of the object.
			owed = append(owed, queue.Delta{Type: cache.Deleted, Key: d.Key, New: d.New, FinalStateUnknown: true, SizeBytes: d.SizeBytes})
			return nil
		})
	}
	return owed, err
}

// CheckReady returns the error that TakeOver would return whatever the file has.
func (k *Sink) CheckReady() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.checkReadyLocked()
}

// checkReadyLocked returns why the handlers cannot be told what is owed now.
func (k *Sink) checkReadyLocked() error {
	switch {
	case k.stopped || !k.complete || k.filling:
		return errors.New("the informer has no complete list yet")
	case k.record.State != checkpoint.StateComplete:
		return errors.New("the cache lacks an object that could not be stored")
	}
	return nil
}

// owedDeletion identifies a deletion that a file owes: its resourceVersion does where a transform has stripped the uid.
// Of those without an object there may be several.
type owedDeletion struct {
	key             string
	uid             types.UID
	resourceVersion string
}

func owedDeletionOf(d queue.Delta) owedDeletion {
	return owedDeletion{d.Key, uidOf(d.New), resourceVersionOf(d.New)}
}

// ForgetTold makes the next TakeOver tell all that is owed. It takes no lock, and is not called beside TakeOver.
func (k *Sink) ForgetTold() { k.toldOwed = map[owedDeletion]int{} }

// TakeOver has handlers told of what the file owes, but for what was told before, see [Sink.ForgetTold]. A name
// that is known to the file only is told everything once it has a handler. No event is applied meanwhile: what is deleted
// before is owed, and what is deleted afterwards is told to all whom the file knows.
func (k *Sink) TakeOver(file *persist.Snapshot, seen string, decided bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	owed, err := k.owedLocked(file, seen, decided)
	if err != nil {
		return err
	}
	if err := k.log.Names(file); err != nil {
		return err
	}
	found := map[owedDeletion]int{}
	owed = slices.DeleteFunc(owed, func(d queue.Delta) bool {
		id := owedDeletionOf(d)
		found[id]++
		return found[id] <= k.toldOwed[id]
	})
	for len(owed) > 0 {
		n := min(len(owed), defaultRelistItems)
		if err := k.tellOwedLocked(owed[:n]); err != nil {
			return err
		}
		for _, d := range owed[:n] {
			k.toldOwed[owedDeletionOf(d)]++
		}
		owed = owed[n:]
	}
	return nil
}

// tellOwedLocked publishes deletions. Where the store has another object of the name, that one
// is told again after it, to durable handlers.
func (k *Sink) tellOwedLocked(owed []queue.Delta) error {
	w := k.indexer.Writer()
	defer w.Close()
	var ds []queue.Delta
	for _, d := range owed {
		d.Seq = w.NextSeq()
		if d.New == nil {
			k.logger.Info("The object of a deletion that the cache file owes cannot be read, handlers are told its key", "key", d.Key)
		}
		obj, exists := w.Stored(d.Key)
		d.Replaced = exists && obj != nil
		ds = append(ds, d)
		if d.Replaced {
			ds = append(ds, queue.Delta{
				Seq: w.NextSeq(), Type: cache.Updated, Key: d.Key, Old: d.New, New: obj, Replaced: true,
				SizeBytes: d.SizeBytes + record.EstimateSize(obj),
			})
		}
	}
	return k.writeLocked(w, ds)
}
