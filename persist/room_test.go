package persist

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestWaitForRoom: a wait lasts while more is pending than its bound. From half of the bound on a commit begins at
// once. UpdateWithRoom has the bound MaxPendingBytes, and WaitForMuchRoom an eighth of it.
func TestWaitForRoom(t *testing.T) {
	for name, test := range map[string]struct {
		wait    func(*DB) // Default WaitForMuchRoom.
		size    int
		end     func(*DB, testsupport.Held)
		written bool // At once.
		waits   bool
	}{
		"a little waits":              {size: 10},
		"more is written":             {size: 1000, written: true},
		"until it is written":         {size: 3000, written: true, waits: true, end: func(_ *DB, held testsupport.Held) { close(held.Release) }},
		"until the DB is closed":      {size: 3000, written: true, waits: true, end: func(db *DB, _ testsupport.Held) { go func() { _ = db.Close() }() }},
		"a writer of little goes on":  {wait: (*DB).WaitForRoom, size: 3000},
		"and has much written":        {wait: (*DB).WaitForRoom, size: 6000, written: true},
		"until it is written, too":    {wait: (*DB).WaitForRoom, size: 12_000, written: true, waits: true, end: func(_ *DB, held testsupport.Held) { close(held.Release) }},
		"until the DB is closed, too": {wait: (*DB).WaitForRoom, size: 12_000, written: true, waits: true, end: func(db *DB, _ testsupport.Held) { go func() { _ = db.Close() }() }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := open(t, testsupport.Path(t), Options{CommitInterval: time.Hour, MaxPendingBytes: 10_000})
				held := testsupport.HoldCommit(t)
				put(t, db, "held", repeat("x", test.size))
				ended := make(chan struct{})
				go func() {
					if test.wait != nil {
						test.wait(db)
					} else {
						db.WaitForMuchRoom()
					}
					close(ended)
				}()
				synctest.Wait()
				if waits := !isClosed(ended); waits != test.waits {
					t.Errorf("it waits: %v", waits)
				}
				db.mu.Lock()
				written := db.flushing != nil
				db.mu.Unlock()
				if written != test.written {
					t.Errorf("it is written at once: %v", written)
				}
				if test.end != nil {
					test.end(db, held)
					synctest.Wait()
				}
				if !isClosed(ended) {
					t.Error("it still waits")
				}
				if !isClosed(held.Release) {
					close(held.Release)
				}
			})
		})
	}
}

// WaitForRoom is the first half of UpdateWithRoom.
func (db *DB) WaitForRoom() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.waitForRoomLocked(db.opts.MaxPendingBytes)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
