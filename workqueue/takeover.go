package workqueue

import (
	"github.com/warmwatch/warmwatch/internal/keyfield"
	"github.com/warmwatch/warmwatch/persist"
)

// TakeOver adds what the space has in a file that could not be had at first, and that is about to be
// replaced by what is in memory: to the workqueues that there are, and for those that may come. Names that
// were forgotten meanwhile stay forgotten. A name has lost items ([Queue.Lost]) if MarkLost was called for it
// meanwhile, if its keys in the file are damaged or too few, or if the file was salvaged and does not have it.
func (s *Store) TakeOver(file *persist.Snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return persist.ErrClosed
	}
	names, err := s.namesIn(file)
	if err != nil {
		return err
	}
	if file.Salvaged() {
		for name, k := range s.opened {
			if _, known := names[name]; !known {
				k.setLost(true)
			}
		}
	}
	written := s.db.Written()
	for name := range names {
		if s.forgotten[name] > written {
			continue
		}
		found, err := s.find(file, name) // Before the name is opened: nothing fails between that and what is noted of it.
		if err != nil {
			return err
		}
		k, first, err := s.keysLocked(name, false)
		if err != nil {
			return err
		}
		k.noteLost(found)
		if first {
			k.known = found.known
			if s.lost[name] > written {
				k.setLost(true)
			}
		}
		for _, key := range found.keys {
			if _, damaged := found.damaged[key]; !damaged { // Else perhaps nobody has added it.
				k.add(key) // A worker may be done with it as soon as it is adopted.
			}
			if k.owner != nil {
				k.owner.adopt(key)
			}
		}
	}
	return nil
}

// namesIn returns the names that a file knows, or has keys of.
func (s *Store) namesIn(file *persist.Snapshot) (map[string]struct{}, error) {
	names := map[string]struct{}{}
	err := file.Scan(namesBucket, "", func(it *persist.Item) (bool, error) {
		names[it.Key] = struct{}{}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	err = file.Scan(keysBucket, "", func(it *persist.Item) (bool, error) {
		if name, _, _ := keyfield.Cut(it.Key); name != "" { // Else no name has it.
			names[name] = struct{}{}
		}
		return true, nil
	})
	return names, err
}
