// Package testdb opens a persist.DB for the tests of what lives in one.
package testdb

import (
	"context"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

// Manual are the options of a DB that commits only when told to.
var Manual = persist.Options{CommitInterval: time.Hour, DurableDelay: time.Hour}

// Open opens a DB, and closes it when the test is over. It must not be degraded then.
func Open(t testing.TB, path string, o persist.Options) *persist.DB {
	t.Helper()
	o.Logger = &testsupport.Quiet
	db, err := persist.Open(context.Background(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, _, err := db.Problem(); err != nil {
			t.Errorf("degraded: %v", err)
		}
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}
