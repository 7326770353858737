package queue

import (
	"math/rand"
	"slices"
	"testing"
)

// TestRunsAreASetOfSeqs does at random what a log does with them, and compares with a
// sorted slice.
func TestRunsAreASetOfSeqs(t *testing.T) {
	rnd := newRand(t)
	for range 4 {
		var rs runs
		var want []Delta // Type tells deletions apart.
		seq := uint64(1)
		for range 40 {
			switch rnd.Intn(4) {
			case 0, 1:
				sparse := 1 + rnd.Intn(300)
				for range rnd.Intn(3 * runsPerPack) {
					d := Delta{Seq: seq, SizeBytes: rnd.Intn(5000), Type: typeOf(uint64(rnd.Intn(6)))}
					rs.add(run{d.Seq, d.Seq, int64(d.SizeBytes), d.Type == typeOf(0)})
					want = append(want, d)
					seq += 1 + uint64(rnd.Intn(sparse))
				}
			case 2:
				var removed []uint64
				some := rnd.Float64()
				from, to := uint64(rnd.Intn(int(seq))), uint64(rnd.Intn(int(seq)))
				want = slices.DeleteFunc(want, func(d Delta) bool {
					gone := d.Seq >= from && d.Seq <= to && rnd.Float64() < some
					if gone {
						removed = append(removed, d.Seq)
					}
					return gone
				})
				rs.remove(removed)
			default: // As a commit trims: some of the oldest, and all but deletions.
				left, floor := rnd.Intn(300), uint64(rnd.Intn(int(seq)))
				rs.edit(0, floor, func(r run, keep func(run)) bool {
					for ; !r.deletions && r.from <= min(r.to, floor) && left > 0; left-- {
						want = slices.DeleteFunc(want, func(d Delta) bool { return d.Seq == r.from })
						_, r = r.cut(r.from)
					}
					if r.from <= r.to {
						keep(r)
					}
					return left > 0
				})
			}
			checkRuns(t, rnd, &rs, want, seq)
		}
	}
}

func checkRuns(t *testing.T, rnd *rand.Rand, rs *runs, want []Delta, end uint64) {
	t.Helper()
	if got := slices.Collect(rs.seqs()); !slices.EqualFunc(got, want, func(seq uint64, d Delta) bool { return seq == d.Seq }) {
		t.Fatalf("there are %d Seqs, expected %d", len(got), len(want))
	}
	last, some := rs.last()
	if some != (len(want) > 0) || (some && last != want[len(want)-1].Seq) {
		t.Fatalf("the last is %d, %v", last, some)
	}
	at := uint64(rnd.Intn(int(end)))
	i, _ := slices.BinarySearchFunc(want, at+1, func(d Delta, seq uint64) int { return int(d.Seq) - int(seq) })
	var got int
	for n := range rs.sizes(at) {
		got += n
	}
	if got != len(want)-i {
		t.Fatalf("%d are behind %d, expected %d", got, at, len(want)-i)
	}
	for r := range rs.after(at) {
		for seq := r.from; seq <= r.to; seq++ {
			if want[i].Seq != seq || r.deletions != (want[i].Type == typeOf(0)) || r.bytes < 0 {
				t.Fatalf("behind %d there is %d in %+v, expected %+v", at, seq, r, want[i])
			}
			i++
		}
	}
	if i != len(want) {
		t.Fatalf("behind %d some are missing", at)
	}
	for _, p := range rs.packed {
		if n := len(slices.Collect(p.all())); n == 0 || n > runsPerPack {
			t.Fatalf("%d runs in a pack", n)
		}
	}
}

// TestPackedRunsAreWhatWasPacked.
func TestPackedRunsAreWhatWasPacked(t *testing.T) {
	want := []run{{0, 0, 0, true}, {1, 1 << 40, 1 << 50, false}, {1<<40 + 7, 1<<40 + 8, 3, true}, {1<<63 - 1, 1<<63 - 1, 200, true}}
	if got := slices.Collect(packRuns(want).all()); !slices.Equal(got, want) {
		t.Errorf("%v, expected %v", got, want)
	}
}
