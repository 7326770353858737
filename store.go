package warmwatch

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
)

// A store is the cache.Indexer of an informer. It stays the same when the informer moves to
// its space in the file.
type store struct {
	mu      sync.RWMutex // Held for writing while the informer moves, and for reading by writers.
	current atomic.Pointer[contents]
}

// contents is what a store has until the informer moves.
type contents struct {
	cache.Indexer
	readers atomic.Int64
}

var _ cache.Indexer = (*store)(nil)

// read returns the contents, which stay until the reader calls done. No lock is held meanwhile,
// because an index function that it calls may read the store, too.
func (s *store) read() *contents {
	for {
		c := s.current.Load()
		c.readers.Add(1)
		if s.current.Load() == c {
			return c
		}
		c.done() // Moved meanwhile: nobody waits for this reader.
	}
}

func (c *contents) done() { c.readers.Add(-1) }

// wait returns once nobody reads the contents, which the store has no more.
func (c *contents) wait() {
	for c.readers.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// write calls fn while the informer does not move.
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
func (s *store) Bookmark(rv string) {
	c := s.read()
	defer c.done()
	c.Bookmark(rv)
}

// Resync implements [cache.Store].
func (s *store) Resync() error {
	c := s.read()
	defer c.done()
	return c.Resync()
}

// List implements [cache.Store].
func (s *store) List() []any {
	c := s.read()
	defer c.done()
	return c.List()
}

// ListKeys implements [cache.Store].
func (s *store) ListKeys() []string {
	c := s.read()
	defer c.done()
	return c.ListKeys()
}

// LastStoreSyncResourceVersion implements [cache.Store].
func (s *store) LastStoreSyncResourceVersion() string {
	c := s.read()
	defer c.done()
	return c.LastStoreSyncResourceVersion()
}

// Get implements [cache.Store].
func (s *store) Get(obj any) (item any, exists bool, err error) {
	c := s.read()
	defer c.done()
	return c.Get(obj)
}

// GetByKey implements [cache.Store].
func (s *store) GetByKey(key string) (item any, exists bool, err error) {
	c := s.read()
	defer c.done()
	return c.GetByKey(key)
}

// Index implements [cache.Indexer].
func (s *store) Index(indexName string, obj any) ([]any, error) {
	c := s.read()
	defer c.done()
	return c.Index(indexName, obj)
}

// IndexKeys implements [cache.Indexer].
func (s *store) IndexKeys(indexName, indexedValue string) ([]string, error) {
	c := s.read()
	defer c.done()
	return c.IndexKeys(indexName, indexedValue)
}

// ListIndexFuncValues implements [cache.Indexer].
func (s *store) ListIndexFuncValues(indexName string) []string {
	c := s.read()
	defer c.done()
	return c.ListIndexFuncValues(indexName)
}

// ByIndex implements [cache.Indexer].
func (s *store) ByIndex(indexName, indexedValue string) ([]any, error) {
	c := s.read()
	defer c.done()
	return c.ByIndex(indexName, indexedValue)
}

// GetIndexers implements [cache.Indexer].
func (s *store) GetIndexers() cache.Indexers {
	c := s.read()
	defer c.done()
	return c.GetIndexers()
}
