package warmwatch

import (
	"sync"
	"sync/atomic"

	"k8s.io/client-go/tools/cache"
)

// A store is the cache.Indexer of an informer. Until the informer runs it is one of client-go's, which remembers the
// indexers, and then the one in the file.
type store struct {
	mu      sync.RWMutex // Held for writing while the informer opens, and for reading by writers.
	current atomic.Pointer[contents]
}

type contents struct{ cache.Indexer }

var _ cache.Indexer = (*store)(nil)

// write calls fn while the informer does not open.
func (s *store) write(fn func(cache.Indexer) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return fn(s.current.Load())
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
func (s *store) Bookmark(rv string) { s.current.Load().Bookmark(rv) }

// Resync implements [cache.Store].
func (s *store) Resync() error { return s.current.Load().Resync() }

// List implements [cache.Store].
func (s *store) List() []any { return s.current.Load().List() }

// ListKeys implements [cache.Store].
func (s *store) ListKeys() []string { return s.current.Load().ListKeys() }

// LastStoreSyncResourceVersion implements [cache.Store].
func (s *store) LastStoreSyncResourceVersion() string {
	return s.current.Load().LastStoreSyncResourceVersion()
}

// Get implements [cache.Store].
func (s *store) Get(obj any) (item any, exists bool, err error) { return s.current.Load().Get(obj) }

// GetByKey implements [cache.Store].
func (s *store) GetByKey(key string) (item any, exists bool, err error) {
	return s.current.Load().GetByKey(key)
}

// Index implements [cache.Indexer].
func (s *store) Index(indexName string, obj any) ([]any, error) {
	return s.current.Load().Index(indexName, obj)
}

// IndexKeys implements [cache.Indexer].
func (s *store) IndexKeys(indexName, indexedValue string) ([]string, error) {
	return s.current.Load().IndexKeys(indexName, indexedValue)
}

// ListIndexFuncValues implements [cache.Indexer].
func (s *store) ListIndexFuncValues(indexName string) []string {
	return s.current.Load().ListIndexFuncValues(indexName)
}

// ByIndex implements [cache.Indexer].
func (s *store) ByIndex(indexName, indexedValue string) ([]any, error) {
	return s.current.Load().ByIndex(indexName, indexedValue)
}

// GetIndexers implements [cache.Indexer].
func (s *store) GetIndexers() cache.Indexers { return s.current.Load().GetIndexers() }
