package warmwatch

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/warmwatch/warmwatch/internal/reflector"
	"github.com/warmwatch/warmwatch/internal/sink"
	"github.com/warmwatch/warmwatch/persist"
)

var errBeingMade = errors.New("an informer is being made")

// takeOver prepares that the DB goes on with a sound file that it could not have at first. All
// informers that use the DB have told their handlers of objects from memory. So their spaces are those
// in memory, and what the file owes to handlers is told first, and its work added to theirs (Q5, Q6).
// The space of the Cache's workqueues is another one of these. Other spaces stay as they are in
// the file: no informer that has one has begun to run.
//
// Nothing is told or added before all informers are ready. An attempt may still fail after it has told or added
// something: an informer is not ready any more, or the file turns out to be damaged. The next attempt does not tell that
// again, nor add the deletions, unless another process has written to the file meanwhile: the handlers of that process
// may have been told of the objects again, and have to hear of the deletions. Keys may be added again.
func (c *Cache) takeOver(file *persist.Found) (spaces []string, done func(), err error) {
	if file.Changed { // Before anything can fail: the next attempt does not see it.
		c.mu.Lock()
		informers := c.informersLocked()
		c.mu.Unlock()
		c.forgetAttempts(informers)
		for _, s := range informers {
			s.lead.forget()
		}
	}
	if !c.opening.TryLock() { // Not waited for: whoever has it may wait for the committer.
		return nil, nil, errBeingMade
	}
	defer func() {
		if err != nil {
			c.opening.Unlock()
		}
	}()
	informers, err := c.inMemory()
	if err != nil {
		return nil, nil, err
	}
	for _, s := range informers {
		p := s.parts.Load()
		if err := p.sink.CheckReady(); err != nil { // Before any of the file is read.
			return nil, nil, fmt.Errorf("%s: %w", p.name(), err)
		}
	}
	if err := checkTakeOver(file, informers); err != nil {
		return nil, nil, err
	}
	for _, s := range informers {
		p := s.parts.Load()
		err := file.Read(p.space, func(snapshot *persist.Snapshot) error { return s.takeOverFile(p, snapshot) })
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.name(), err)
		}
		spaces = append(spaces, p.space)
	}
	if err := file.Read(workSpace, c.takeOverWork); err != nil {
		return nil, nil, fmt.Errorf("workqueues: %w", err)
	}
	done = func() { // Takes no lock: its holder may wait for room, which only the committer makes.
		c.forgetAttempts(informers)
		c.opening.Unlock()
	}
	return append(spaces, workSpace), done, nil
}

// checkTakeOver checks that each informer can take over its part of a file. It goes on after one whose store is behind
// the file, so that all of them list at the same time.
func checkTakeOver(file *persist.Found, informers []*SharedIndexInformer) (err error) {
	for _, s := range informers {
		p := s.parts.Load()
		failed := file.Read(p.space, func(snapshot *persist.Snapshot) error {
			return p.sink.CheckTakeOver(snapshot, latestDeleted(snapshot), s.lead.isDecided())
		})
		if failed != nil {
			failed = fmt.Errorf("%s: %w", p.name(), failed)
		}
		behind, isBehind := errors.AsType[*sink.BehindError](failed)
		if failed != nil && !isBehind {
			return failed
		}
		if isBehind && s.lead.see(s.hears()) {
			p.logger.Info("Listing all objects, because the watch does not bring what the cache file has", "reason", behind.Error())
			s.resumer.Load().ForceRelist(reflector.Relisting{Reason: behind.Error(), Newest: true})
		}
		err = cmp.Or(err, failed)
	}
	return err
}

// addedWork is what attempts to take over the file as it is have added of one informer's.
type addedWork struct {
	deletions map[string]struct{} // By their keys in the file.
	keys      bool                // Those of its reconcilers.
}

func (c *Cache) addedTo(p *parts) *addedWork {
	if c.added == nil {
		c.added = map[*parts]*addedWork{}
	}
	if c.added[p] == nil {
		c.added[p] = &addedWork{deletions: map[string]struct{}{}}
	}
	return c.added[p]
}

// forgetAttempts forgets what attempts to take over the file have told and added.
func (c *Cache) forgetAttempts(informers []*SharedIndexInformer) {
	c.added = nil
	for _, s := range informers {
		s.parts.Load().sink.ForgetTold()
	}
}

// takeOverWork adds what the file has of the Cache's workqueues. A salvaged file may lack some of them, and stays
// marked: so one that is opened later is Lost as well.
func (c *Cache) takeOverWork(file *persist.Snapshot) error {
	if err := c.work.TakeOver(file); err != nil || !file.Salvaged() {
		return err
	}
	return c.db.MarkSalvaged(workSpace)
}

// inMemory returns the informers that use the DB. It fails while one is being made, is about to end, or
// has still to list because its file was lost: its store lacks what was in that.
func (c *Cache) inMemory() ([]*SharedIndexInformer, error) {
	c.mu.Lock()
	closed, informers, spacesClaimed := c.closed, c.informersLocked(), len(c.informers)
	c.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case len(informers) < spacesClaimed:
		return nil, errBeingMade
	}
	informers = slices.DeleteFunc(informers, func(s *SharedIndexInformer) bool { return s.parts.Load().db != c.db })
	for _, s := range informers {
		if s.IsStopped() || s.isEnding() {
			return nil, fmt.Errorf("%s is about to end", s.parts.Load().name())
		}
		if err := s.corruption(); err != nil {
			return nil, fmt.Errorf("%s has to list again: %w", s.parts.Load().name(), err)
		}
	}
	return informers, nil
}

// takeOverFile adds what the file owes to what is in memory.
func (s *SharedIndexInformer) takeOverFile(p *parts, file *persist.Snapshot) error {
	if err := p.sink.TakeOver(file, latestDeleted(file), s.lead.isDecided()); err != nil {
		return err
	}
	added := s.cache.addedTo(p)
	if err := s.takeOverDeletions(p, file, added.deletions); err != nil || added.keys {
		return err
	}
	if err := s.takeOverKeys(p, file); err != nil {
		return err
	}
	added.keys = true
	return nil
}

// takeOverKeys adds the keys of reconcilers. Whatever the file has lost, one that runs here has all its keys, because
// its handler was told of every object: if it was not Lost before, it is not afterwards.
func (s *SharedIndexInformer) takeOverKeys(p *parts, file *persist.Snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	notLost := slices.DeleteFunc(slices.Clone(s.reconcilers), func(r *reconciler) bool { return r.queue.Lost() })
	if err := p.work.TakeOver(file); err != nil {
		return err
	}
	for _, r := range notLost {
		r.queue.Recovered()
	}
	return nil
}

// takeOverDeletions adds the deletions that are not reconciled in the file, but for those that were added before. Those
// of names that have no reconciler here wait for one. They are taken as they are: what Go type they are of may be known
// only later.
func (s *SharedIndexInformer) takeOverDeletions(p *parts, file *persist.Snapshot, added map[string]struct{}) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	reconcilers := map[string]*reconciler{}
	for _, r := range s.reconcilers {
		reconcilers[r.name] = r
	}
	written := p.db.Written()
	others := newDeletions(p.db, p.space, "", s.newObject) // Of names that have no reconciler here.
	return file.Scan(deletedBucket, "", func(it *persist.Item) (bool, error) {
		name, key, err := cutDeletedKey(it.Key)
		if err != nil || s.forgotten[name] > written { // Damage: nobody would ever look for it.
			return true, nil
		}
		if _, before := added[it.Key]; before {
			return true, nil
		}
		payload, err := it.Payload()
		if err != nil { // Its name is in the workqueue.
			p.logger.Error(err, "Could not read a deleted object, reconciling without it", "key", it.Key)
			added[it.Key] = struct{}{}
			return true, nil
		}
		d, r := others, reconcilers[name]
		if r != nil {
			d = r.deletions
		}
		if err := d.takeOver(key, it.Key, bytes.Clone(payload)); err != nil {
			return false, err
		}
		if r != nil {
			r.queue.Add(key)
		}
		added[it.Key] = struct{}{}
		return true, nil
	})
}

// arrive moves an informer that waits in memory to its space in the DB.
func (s *SharedIndexInformer) arrive() error {
	p := s.parts.Load()
	if s.deferred || p.db == s.cache.db {
		return nil
	}
	return s.settle(s.cache.db, p.identity, p.asked)
}
