package recorder

import (
	"slices"
	"sync"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// Chain is a handler that fails if a notification does not follow on the ones
// before: an addition of what is there, an update of something else, a deletion
// of what is not there.
type Chain struct {
	t         *testing.T
	Name      string
	mu        sync.Mutex
	delivered map[string]string // resourceVersion by key.
	// Forgiving: whatever comes is believed.
	Forgiving bool
	// IsNewName: it gets OnDelete for the deletions that are still stored (D3).
	IsNewName bool
}

// NewChain returns a handler that was notified of nothing.
func NewChain(t *testing.T, name string) *Chain {
	return &Chain{t: t, Name: name, delivered: map[string]string{}}
}

func (c *Chain) move(what, key, before, after string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if delivered := c.delivered[key]; delivered != before && !c.Forgiving {
		c.t.Errorf("handler %s: %s of %s, from version %q to %q, but it was notified of %q", c.Name, what, key, before, after, delivered)
	}
	if c.delivered[key] = after; after == "" {
		delete(c.delivered, key)
	}
}

// OnAdd implements cache.ResourceEventHandler.
func (c *Chain) OnAdd(obj any, _ bool) {
	c.move("addition", source.Key(obj), "", source.Meta(obj).GetResourceVersion())
}

// OnUpdate implements cache.ResourceEventHandler.
func (c *Chain) OnUpdate(old, obj any) {
	c.move("update", source.Key(obj), source.Meta(old).GetResourceVersion(), source.Meta(obj).GetResourceVersion())
}

// OnDelete implements cache.ResourceEventHandler.
func (c *Chain) OnDelete(obj any) {
	key := source.Key(obj)
	c.mu.Lock()
	before, delivered := c.delivered[key]
	c.mu.Unlock()
	if !delivered && !c.Forgiving && !c.IsNewName {
		c.t.Errorf("handler %s: deletion of %s, which it was not notified of", c.Name, key)
	}
	c.move("deletion", key, before, "")
}

// Versions are what the handler believes that there is, sorted.
func (c *Chain) Versions() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	vs := make([]string, 0, len(c.delivered))
	for key, rv := range c.delivered {
		vs = append(vs, key+"@"+rv)
	}
	slices.Sort(vs)
	return vs
}
