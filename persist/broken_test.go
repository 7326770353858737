package persist

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestWhatHooksTakeBackDoesNotWaitForADamagedFileToBeReplaced: acknowledged deltas need
// not stay in memory until then, nor while commits fail.
func TestWhatHooksTakeBackDoesNotWaitForADamagedFileToBeReplaced(t *testing.T) {
	path := testsupport.Path(t)
	synctest.Test(t, func(t *testing.T) {
		db := open(t, path, Options{CommitInterval: time.Second})
		salvageable(t, db)
		full := fullDisk(t)
		disorder(t, path)
		meetDisorder(t, db)
		log := Bucket{"space", "log"}
		acked, asked, next := 0, 0, 0
		db.AddHook(&Hook{BeforeCommit: func(b *Batch) {
			asked++
			for ; acked < next; acked++ {
				b.Delete(log, fmt.Sprint(acked))
			}
		}})
		after(time.Minute)
		for range 36000 {
			apply(t, db, func(b *Batch) { b.PutNew(log, fmt.Sprint(next), Bytes("xxxxxxxx")); next++ })
			time.Sleep(100 * time.Millisecond)
		}
		db.mu.Lock()
		bytes, broken := db.pending.bytes, db.broken
		db.mu.Unlock()
		if broken == nil {
			t.Fatal("not broken")
		}
		if asked == 0 || bytes > 1<<17 {
			t.Errorf("in an hour hooks were asked %d times, %d bytes wait", asked, bytes)
		}
		full.Store(false)
		after(2 * maxReplaceDelay)
		flush(t, db)
	})
}
