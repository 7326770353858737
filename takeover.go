package warmwatch

import (
	"errors"
	"fmt"

	"github.com/warmwatch/warmwatch/persist"
)

// takeOverPatience is how often, a second apart, a file is not taken over because it has seen more
// of the server than an informer.
const takeOverPatience = 10

var errBeingMade = errors.New("an informer is being made")

// takeOver prepares that the DB goes on with a sound file that it could not have at first. All
// informers that use the DB have told their handlers of objects from memory. So their spaces are those
// in memory, and what the file owes to handlers is told first. Other spaces stay as they are in
// the file: no informer that has one has begun to run.
func (c *Cache) takeOver(file *persist.Found) (spaces []string, done func(), err error) {
	if !c.opening.TryLock() { // Not waited for: whoever has it may wait for the committer.
		return nil, nil, errBeingMade
	}
	defer func() {
		if err != nil {
			c.postponed++
			c.opening.Unlock()
		}
	}()
	c.mu.Lock()
	closed, informers, spacesClaimed := c.closed, c.informersLocked(), len(c.informers)
	c.mu.Unlock()
	switch {
	case closed:
		return nil, nil, ErrClosed
	case len(informers) < spacesClaimed:
		return nil, nil, errBeingMade
	}
	for _, s := range informers {
		if s.parts.Load().db == c.db && (s.IsStopped() || s.isEnding()) {
			return nil, nil, fmt.Errorf("%s is about to end", s.parts.Load().name())
		}
	}
	for _, s := range informers {
		p := s.parts.Load()
		if p.db != c.db {
			continue
		}
		err := file.Read(p.space, func(snapshot *persist.Snapshot) error {
			return p.sink.TakeOver(snapshot, c.postponed < takeOverPatience)
		})
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.name(), err)
		}
		spaces = append(spaces, p.space)
	}
	return spaces, func() { c.postponed = 0; c.opening.Unlock() }, nil
}

// arrive moves an informer that waits in memory to its space in the DB.
func (s *SharedIndexInformer) arrive() bool {
	p := s.parts.Load()
	if s.deferred || p.db == s.cache.db {
		return true
	}
	if err := s.settle(s.cache.db, p.identity, p.asked); err != nil {
		if !errors.Is(err, ErrClosed) {
			p.logger.Error(err, "Could not begin to run")
		}
		return false
	}
	return true
}
