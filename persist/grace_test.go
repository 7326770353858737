package persist

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestWhatCannotBeWrittenCountsAsDurableAfterTheGrace (S6), and is written once it can be.
func TestWhatCannotBeWrittenCountsAsDurableAfterTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		db := openSound(t, path, Options{CommitInterval: time.Second})
		seen := follow(t, db)
		expect := func(want bool) {
			t.Helper()
			if got := db.Durable() == db.Applied() && seen.Load() == db.Applied(); got != want {
				t.Errorf("durable up to %d, seen up to %d, applied %d", db.Durable(), seen.Load(), db.Applied())
			}
			if want {
				s := snapshot(t, db, true)
				defer s.Close()
				if got, err := scan(s, testBucket.Name, "a"); got["a"] != "now" || err != nil {
					t.Errorf("a durable snapshot has %v, %v", got["a"], err)
				}
			}
		}
		fill(db, true)
		put(t, db, "big", repeat("x", 8<<20))
		put(t, db, "a", "now")
		after(30*time.Second - time.Millisecond)
		expect(false)
		after(time.Second)
		expect(true)
		after(5 * time.Minute)
		if err := db.Update(func(b *Batch) { b.Urgent() }); err != nil {
			t.Fatal(err)
		}
		after(10*time.Millisecond + time.Millisecond)
		expect(true)
		fill(db, false)
		after(maxRetryDelay + time.Second)
		if err := db.Err(); err != nil {
			t.Error(err)
		}
		wantDurable(t, db, db.Applied())
		expect(true)
		close1(t, db)
		if v, _ := get(t, openSound(t, path, manual), "a"); v != "now" {
			t.Errorf("the file has %q", v)
		}
	})
}

// TestADiskThatDoesNotAnswer: the watch stands still, and Err says so.
func TestADiskThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t, testsupport.Path(t), Options{CommitInterval: time.Second})
		held := testsupport.HoldCommit(t)
		put(t, db, "held", "x")
		after(hangingCommit)
		if err := db.Err(); err != nil {
			t.Error(err)
		}
		after(time.Minute)
		if db.Err() == nil || db.Durable() != 0 {
			t.Errorf("Err is nil, durable up to %d", db.Durable())
		}
		close(held.Release)
		synctest.Wait()
		if err := db.Err(); err != nil {
			t.Error(err)
		}
	})
}
