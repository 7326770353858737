package warmwatch

import (
	"context"
	"fmt"
	"time"

	"github.com/warmwatch/warmwatch/internal/request"
)

// schemaAge is how old the server's answer about its schemas may be: informers that start, or lose
// their history, at the same time ask once.
const schemaAge = 2 * time.Second

// schemas has the last answer of a server about its schemas.
type schemas struct {
	turn   chan struct{} // Its holder may ask, and use the rest.
	server string
	asked  time.Time
	hashes map[string]string
}

func newSchemas() *schemas { return &schemas{turn: make(chan struct{}, 1)} }

// of returns a hash of the schema of the objects that a request is about.
func (s *schemas) of(ctx context.Context, seen *request.Seen) (string, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if server := seen.Server(); s.server != server || time.Since(s.asked) > schemaAge {
		asked := time.Now()
		hashes, err := seen.Schemas(ctx)
		if err != nil {
			return "", err
		}
		s.server, s.asked, s.hashes = server, asked, hashes
	}
	path := seen.GroupVersionPath()
	if s.hashes[path] == "" {
		return "", fmt.Errorf("the server has no hash of the schema of %s", path)
	}
	return s.hashes[path], nil
}

// serverSchema returns what asks the server for its schema of the objects, nil if requests are not
// seen.
func (s *SharedIndexInformer) serverSchema() func(context.Context) (string, error) {
	if s.parts.Load().fromMemory() || !s.cache.wrapped.Load() {
		return nil
	}
	return func(ctx context.Context) (string, error) {
		seen, err := s.lookAgain(ctx)
		if err != nil {
			return "", err
		}
		return s.cache.schemas.of(ctx, seen)
	}
}
