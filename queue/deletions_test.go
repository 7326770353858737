package queue

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// TestDeletionsAreFoundWithoutReadingTheBacklog: an initial list asks for those of each of its chunks. A
// delta that nobody asks for is not read, nor one reported that cannot be.
func TestDeletionsAreFoundWithoutReadingTheBacklog(t *testing.T) {
	path := testsupport.Path(t)
	db := testdb.Open(t, path, testdb.Manual)
	q := newLog(t, db, Options{TailBytes: 1})
	c := durable(t, q, "d", false)
	const n = 3 * deltasPerRead
	for seq := uint64(1); seq <= n; seq++ {
		typ := cache.Updated
		if seq%3 == 0 {
			typ = cache.Deleted
		}
		publish(t, q, ofSize(seq, typ, fmt.Sprint("pod-", seq%100), 200))
	}
	flush(t, q)
	if _, err := db.Update(func(b *persist.Batch) {
		for seq := uint64(1); seq <= n; seq++ {
			if seq%100 != 6 { // To read one of them would fail the test: see newLog.
				b.Put(q.deltas, deltaKey(seq), persist.Bytes("\x07no delta"))
			}
		}
		b.Put(q.tombstones, deltaKey(306), persist.Bytes("no tombstone"))
	}); err != nil {
		t.Fatal(err)
	}
	flush(t, q)
	ds, got := c.Deletions(), []uint64{}
	for _, upTo := range []uint64{0, 5, 250, 250, n} {
		found, err := ds.Of([]string{"ns/pod-6"}, 0, upTo)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range found {
			got = append(got, d.Seq)
		}
		got = append(got, 0)
	}
	if want := []uint64{0, 0, 6, 0, 6, 0, 6, 306, 606, 0}; !slices.Equal(got, want) {
		t.Errorf("found %v, expected %v", got, want)
	}
}

// TestTheDeletionsOfANameAreReadSomeAtATime, in order, each of them once. One that is gone meanwhile, and more than one
// read of those whose tombstones cannot be read and that are of another name, do not end that.
func TestTheDeletionsOfANameAreReadSomeAtATime(t *testing.T) {
	for name, c := range map[string]struct {
		n           uint64
		bytes, read int // Of each deletion, and how many of them one call returns at most.
	}{
		"small": {n: 3 * deltasPerRead, bytes: 200, read: deltasPerRead},
		"large": {n: 40, bytes: maxReadBytes / 4, read: 5},
	} {
		t.Run(name, func(t *testing.T) {
			q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1})
			d := durable(t, q, "d", false)
			const others = deltasPerRead + 44
			for seq := uint64(1); seq <= others; seq++ {
				publish(t, q, ofSize(seq, cache.Deleted, "other", 200))
			}
			for seq := uint64(others + 1); seq <= others+c.n; seq++ {
				gone := ofSize(seq, cache.Deleted, "pod", c.bytes)
				gone.New.(*corev1.Pod).Annotations = map[string]string{"a": strings.Repeat("x", c.bytes)}
				publish(t, q, gone)
			}
			flush(t, q)
			update := func(change func(*persist.Batch)) {
				t.Helper()
				if _, err := q.db.Update(change); err != nil {
					t.Fatal(err)
				}
				flush(t, q)
			}
			update(func(b *persist.Batch) {
				for seq := uint64(1); seq <= others; seq++ {
					b.Put(q.tombstones, deltaKey(seq), persist.Bytes("no tombstone"))
				}
			})
			ds, got, after, upTo := d.Deletions(), []uint64{}, uint64(0), uint64(others+c.n-2)
			gone := upTo - 1
			for {
				found, err := ds.Of([]string{"ns/none", "ns/pod"}, after, upTo)
				if err != nil {
					t.Fatal(err)
				}
				if len(found) == 0 {
					break
				}
				if len(found) > c.read {
					t.Errorf("%d deletions at once, expected at most %d", len(found), c.read)
				}
				for _, d := range found {
					got = append(got, d.Seq)
				}
				after = got[len(got)-1]
				update(func(b *persist.Batch) {
					b.Delete(q.deltas, deltaKey(gone))
					b.Delete(q.tombstones, deltaKey(gone))
				})
			}
			var want []uint64
			for seq := uint64(others + 1); seq <= upTo; seq++ {
				if seq != gone {
					want = append(want, seq)
				}
			}
			wantSeqs(t, "found", want, got)
		})
	}
}
