package workqueue

import (
	"fmt"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// TestAStoreIsNotLockedWhileTheDBHasNoRoom: a commit makes room, and what it calls may ask the Store.
func TestAStoreIsNotLockedWhileTheDBHasNoRoom(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), persist.Options{MaxPendingBytes: 1})
	s := NewStore(db, "space", testsupport.Quiet)
	defer db.AddHook(&persist.Hook{Space: "space", AfterCommit: func(uint64) {
		time.Sleep(time.Millisecond) // Meanwhile there is no room.
		s.Status()
	}})()
	for i := range 100 {
		name := fmt.Sprint(i)
		_, err := db.Update(func(b *persist.Batch) {
			b.Put(persist.Bucket{Space: "space", Name: "other"}, name, persist.Bytes("x"))
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.MarkLost(name); err != nil {
			t.Fatal(err)
		}
		if err := s.Forget(name); err != nil {
			t.Fatal(err)
		}
	}
}
