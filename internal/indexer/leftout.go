package indexer

import (
	"maps"
	"slices"
	"sync"
)

// A keySet is a set of keys.
type keySet struct {
	mu   sync.Mutex
	keys map[string]struct{}
}

func (s *keySet) add(keys ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys = map[string]struct{}{}
	}
	for _, key := range keys {
		s.keys[key] = struct{}{}
	}
}

func (s *keySet) take() map[string]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := s.keys
	s.keys = nil
	return keys
}

// TakeLeftOut returns the keys of the objects that lists, initial ones too, have left out
// because they could not be read. Whoever takes them has them told again, or returns them.
func (ix *Indexer) TakeLeftOut() map[string]struct{} { return ix.leftOut.take() }

// ReturnLeftOut undoes TakeLeftOut.
func (ix *Indexer) ReturnLeftOut(keys map[string]struct{}) {
	ix.leftOut.add(slices.Collect(maps.Keys(keys))...)
}
