package queue

import (
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// TestRemoveUnknownRemovesWhatTheLogDoesNotHave, and nothing else: deltas that the copy of a
// damaged file has again.
func TestRemoveUnknownRemovesWhatTheLogDoesNotHave(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1})
	c := durable(t, q, "d", false)
	publishUpTo(t, q, 1, 40)
	flush(t, q)
	next(t, c, 10)
	commitAnew(t, q)
	want := onDisk(t, q.db, false)
	if len(want) == 0 {
		t.Fatal("nothing is stored")
	}
	for _, key := range []string{deltaKey(2), deltaKey(9), "no number"} {
		if _, err := q.db.Update(func(b *persist.Batch) {
			b.Put(q.deltas, key, persist.Bytes("x"))
			b.Put(q.tombstones, key, persist.Bytes("x"))
		}); err != nil {
			t.Fatal(err)
		}
	}
	flush(t, q)
	if err := q.RemoveUnknown(); err != nil {
		t.Fatal(err)
	}
	flush(t, q)
	wantSeqs(t, "left", want, onDisk(t, q.db, false))
	left := 0
	if err := q.db.Read(testSpace, func(s *persist.Snapshot) error {
		return s.Scan(tombstonesBucket, "", func(it *persist.Item) (bool, error) {
			if seq, err := parseDeltaKey(it.Key); err != nil || seq <= 10 {
				left++
			}
			return true, nil
		})
	}); err != nil || left > 0 {
		t.Errorf("%d unknown tombstones are left, %v", left, err)
	}
}
