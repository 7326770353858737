package warmwatch

import (
	"sync"

	"k8s.io/client-go/tools/cache"
)

// A store is the cache.Indexer of an informer. It stays the same when the informer moves to
// its space in the file.
type store struct {
	mu      sync.RWMutex // Held for writing while the informer moves, and for reading by writers.
	current cache.Indexer
}

var _ cache.Indexer = (*store)(nil)

func (s *store) now() cache.Indexer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.current
}

func (s *store) use(other cache.Indexer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = other
}

// write calls fn while the informer does not move.
func (s *store) write(fn func(cache.Indexer) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return fn(s.current)
}

// Add implements [cache.Store].
func (s *store) Add(obj any) error {
	return s.write(func(ix cache.Indexer) error { return ix.Add(obj) })
}

// Update implements [cache.Store].
func (s *store) Update(obj any) error {
	return s.write(func(ix cache.Indexer) error { return ix.Update(obj) })
}

// Delete implements [cache.Store].
func (s *store) Delete(obj any) error {
	return s.write(func(ix cache.Indexer) error { return ix.Delete(obj) })
}

// Replace implements [cache.Store].
func (s *store) Replace(list []any, resourceVersion string) error {
	return s.write(func(ix cache.Indexer) error { return ix.Replace(list, resourceVersion) })
}

// AddIndexers implements [cache.Indexer].
func (s *store) AddIndexers(added cache.Indexers) error {
	return s.write(func(ix cache.Indexer) error { return ix.AddIndexers(added) })
}

// Bookmark implements [cache.Store].
func (s *store) Bookmark(rv string) { s.now().Bookmark(rv) }

// Resync implements [cache.Store].
func (s *store) Resync() error { return s.now().Resync() }

// List implements [cache.Store].
func (s *store) List() []any { return s.now().List() }

// ListKeys implements [cache.Store].
func (s *store) ListKeys() []string { return s.now().ListKeys() }

// LastStoreSyncResourceVersion implements [cache.Store].
func (s *store) LastStoreSyncResourceVersion() string { return s.now().LastStoreSyncResourceVersion() }

// Get implements [cache.Store].
func (s *store) Get(obj any) (item any, exists bool, err error) { return s.now().Get(obj) }

// GetByKey implements [cache.Store].
func (s *store) GetByKey(key string) (item any, exists bool, err error) { return s.now().GetByKey(key) }

// Index implements [cache.Indexer].
func (s *store) Index(indexName string, obj any) ([]any, error) { return s.now().Index(indexName, obj) }

// IndexKeys implements [cache.Indexer].
func (s *store) IndexKeys(indexName, indexedValue string) ([]string, error) {
	return s.now().IndexKeys(indexName, indexedValue)
}

// ListIndexFuncValues implements [cache.Indexer].
func (s *store) ListIndexFuncValues(indexName string) []string {
	return s.now().ListIndexFuncValues(indexName)
}

// ByIndex implements [cache.Indexer].
func (s *store) ByIndex(indexName, indexedValue string) ([]any, error) {
	return s.now().ByIndex(indexName, indexedValue)
}

// GetIndexers implements [cache.Indexer].
func (s *store) GetIndexers() cache.Indexers { return s.now().GetIndexers() }
