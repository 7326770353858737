package queue

import (
	"fmt"
	"maps"
	"math/rand"
	"reflect"
	"slices"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestRunsAreASetOfSeqs does at random what a log does with them, and compares with a
// sorted slice.
func TestRunsAreASetOfSeqs(t *testing.T) {
	rnd := testsupport.Rand(t)
	for range testsupport.Rounds(4, 1) {
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
			default: // Some of the oldest, as a commit trims, but none of the deletions, as a fold.
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
	checkPacks(t, rs)
}

// checkPacks compares what is known of each pack with what is in it. Two beside each
// other are not both small.
func checkPacks(t *testing.T, rs *runs) {
	t.Helper()
	for i, p := range rs.packed {
		in := slices.Collect(p.all())
		if n := len(in); n == 0 || n > runsPerPack {
			t.Fatalf("%d runs in a pack", n)
		}
		again := packRuns(in)
		again.encoded, p.encoded = nil, nil
		if !reflect.DeepEqual(again, p) {
			t.Fatalf("a pack is %+v, it has %+v", p, again)
		}
		if i > 0 && len(rs.packed[i-1].encoded)+len(rs.packed[i].encoded) <= minRunBytes*runsPerPack {
			t.Fatalf("packs %d and %d are small", i-1, i)
		}
	}
}

// TestRemoveIsThatOfASet compares with a map what is left where some Seqs are removed, a
// few of many packs, or most of one; runs are of different lengths.
func TestRemoveIsThatOfASet(t *testing.T) {
	rnd := testsupport.Rand(t)
	for range testsupport.Rounds(4, 1) {
		var rs runs
		want := map[uint64]bool{} // By Seq: it is a deletion.
		seq := uint64(1)
		for len(rs.packed) < 10 {
			r := run{from: seq, to: seq + uint64(rnd.Intn(1+rnd.Intn(4))), bytes: int64(rnd.Intn(5000)), deletions: rnd.Intn(2) == 0}
			rs.add(r)
			for seq = r.from; seq <= r.to; seq++ {
				want[seq] = r.deletions
			}
			seq += uint64(rnd.Intn(3))
		}
		for len(want) > 0 {
			var removed []uint64
			some, from := rnd.Float64()*rnd.Float64(), uint64(rnd.Intn(int(seq)))
			to := from + uint64(rnd.Intn(int(seq)))
			for seq := range want {
				if seq >= from && seq <= to && rnd.Float64() < some {
					removed = append(removed, seq)
				}
			}
			slices.Sort(removed)
			for _, seq := range removed {
				delete(want, seq)
			}
			rs.remove(removed)
			got := map[uint64]bool{}
			for r := range rs.from(0) {
				for seq := r.from; seq <= r.to; seq++ {
					got[seq] = r.deletions
				}
			}
			if !maps.Equal(got, want) {
				t.Fatalf("%d were removed, there are %d, expected %d", len(removed), len(got), len(want))
			}
			if seqs := slices.Collect(rs.seqs()); len(seqs) != len(want) || !slices.IsSorted(seqs) {
				t.Fatalf("%d Seqs, in order: %v; expected %d", len(seqs), slices.IsSorted(seqs), len(want))
			}
			checkPacks(t, &rs)
		}
	}
}

// everyOther are n runs: a deletion, a gap, a deletion.
func everyOther(n int) (rs runs) {
	for i := range uint64(n) {
		rs.add(run{from: 2*i + 2, to: 2*i + 2, bytes: 300, deletions: true})
	}
	return rs
}

// BenchmarkRemove removes as many Seqs as a pass of folding does at once, each of another
// pack if there are so many.
func BenchmarkRemove(b *testing.B) {
	for _, n := range []int{10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("runs=%dk", n/1000), func(b *testing.B) {
			all := everyOther(n)
			var seqs []uint64
			for i := range foldBatchOps {
				seqs = append(seqs, uint64(2+2*(i*n/foldBatchOps)))
			}
			for b.Loop() {
				rs := runs{slices.Clone(all.packed), slices.Clone(all.newest)}
				rs.remove(seqs)
			}
		})
	}
}

// TestPackedRunsAreWhatWasPacked.
func TestPackedRunsAreWhatWasPacked(t *testing.T) {
	want := []run{{0, 0, 0, true}, {1, 1 << 40, 1 << 50, false}, {1<<40 + 7, 1<<40 + 8, 3, true}, {1<<63 - 1, 1<<63 - 1, 200, true}}
	if got := slices.Collect(packRuns(want).all()); !slices.Equal(got, want) {
		t.Errorf("%v, expected %v", got, want)
	}
}
