package queue

import (
	"encoding/binary"
	"iter"
	"slices"
	"sort"
)

// run is the range of Seqs from..to, both included. Each has a delta.
type run struct {
	from, to  uint64
	bytes     int64 // About what the deltas take together.
	deletions bool  // All deltas are deletions, and have tombstones; else none.
}

// cut splits the run after seq, which is in it or before it.
func (r run) cut(seq uint64) (head, rest run) {
	if seq < r.from {
		return run{}, r
	}
	n, of := seq-r.from+1, r.to-r.from+1
	bytes := int64(float64(r.bytes) * (float64(n) / float64(of)))
	return run{r.from, seq, bytes, r.deletions}, run{seq + 1, r.to, r.bytes - bytes, r.deletions}
}

// runs is a set of Seqs, as ranges in order. Deletions are not folded, so while a
// consumer hangs each of them may be a run of its own, as many as the disk has room for.
// Therefore all but the newest runs are packed, and take about 5 bytes each.
type runs struct {
	packed []packedRuns // None is empty.
	newest []run        // After the packed ones, at most runsPerPack.
}

// runsPerPack is how many runs a pack has at most. To find one, its pack is decoded.
const runsPerPack = 256

// minRunBytes is the least size of a packed run, which is three uvarints.
const minRunBytes = 3

// packedRuns encodes each run as three uvarints: the gap before it, twice its length
// plus 1 if it is of deletions, and its bytes.
type packedRuns struct {
	from, to uint64
	deltas   int
	bytes    int64
	encoded  []byte
}

func packRuns(rs []run) packedRuns {
	p := packedRuns{from: rs[0].from, to: rs[len(rs)-1].to}
	b := make([]byte, 0, 8*len(rs))
	end := p.from
	for _, r := range rs {
		n := r.to - r.from + 1
		kind := uint64(0)
		if r.deletions {
			kind = 1
		}
		b = binary.AppendUvarint(b, r.from-end)
		b = binary.AppendUvarint(b, n<<1|kind)
		b = binary.AppendUvarint(b, uint64(r.bytes))
		end = r.to + 1
		p.deltas += int(n)
		p.bytes += r.bytes
	}
	p.encoded = slices.Clone(b) // Without spare capacity.
	return p
}

func (p packedRuns) all() iter.Seq[run] {
	return func(yield func(run) bool) {
		b, end := p.encoded, p.from
		number := func() uint64 {
			n, size := binary.Uvarint(b)
			b = b[size:]
			return n
		}
		for len(b) > 0 {
			gap, n, bytes := number(), number(), number()
			r := run{end + gap, end + gap + n>>1 - 1, int64(bytes), n&1 != 0}
			end = r.to + 1
			if !yield(r) {
				return
			}
		}
	}
}

// appendPack appends a pack. If the last one certainly has room, it takes the new runs.
func appendPack(packs []packedRuns, p packedRuns) []packedRuns {
	if n := len(packs); n > 0 && len(packs[n-1].encoded)+len(p.encoded) <= minRunBytes*runsPerPack {
		packs[n-1] = packRuns(slices.AppendSeq(slices.Collect(packs[n-1].all()), p.all()))
		return packs
	}
	return append(packs, p)
}

// appendRun appends a run. If it continues the last one, that is extended.
func appendRun(rs []run, r run) []run {
	if n := len(rs); n > 0 {
		if last := &rs[n-1]; last.to+1 == r.from && last.deletions == r.deletions {
			last.to = r.to
			last.bytes += r.bytes
			return rs
		}
	}
	return append(rs, r)
}

// add adds a run after all others.
func (rs *runs) add(r run) { rs.setNewest(appendRun(rs.newest, r)) }

// setNewest sets newest, and packs the oldest of them while they are too many.
func (rs *runs) setNewest(newest []run) {
	for ; len(newest) > runsPerPack; newest = slices.Delete(newest, 0, runsPerPack) {
		rs.packed = append(rs.packed, packRuns(newest[:runsPerPack]))
	}
	rs.newest = newest
}

// last returns the greatest Seq.
func (rs *runs) last() (seq uint64, some bool) {
	if n := len(rs.newest); n > 0 {
		return rs.newest[n-1].to, true
	}
	if n := len(rs.packed); n > 0 {
		return rs.packed[n-1].to, true
	}
	return 0, false
}

// packAfter returns the index of the first pack that has a Seq above seq.
func (rs *runs) packAfter(seq uint64) int {
	return sort.Search(len(rs.packed), func(i int) bool { return rs.packed[i].to > seq })
}

// from yields all runs but those of the first n packs.
func (rs *runs) from(n int) iter.Seq[run] {
	return func(yield func(run) bool) {
		for _, p := range rs.packed[n:] {
			for r := range p.all() {
				if !yield(r) {
					return
				}
			}
		}
		for _, r := range rs.newest {
			if !yield(r) {
				return
			}
		}
	}
}

// after yields the runs above seq.
func (rs *runs) after(seq uint64) iter.Seq[run] {
	return func(yield func(run) bool) {
		for r := range rs.from(rs.packAfter(seq)) {
			if r.to <= seq {
				continue
			}
			if _, rest := r.cut(seq); !yield(rest) {
				return
			}
		}
	}
}

// seqs yields each Seq.
func (rs *runs) seqs() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for r := range rs.from(0) {
			for seq := r.from; ; seq++ { // With damage, r.to may be the greatest uint64.
				if !yield(seq) {
					return
				}
				if seq == r.to {
					break
				}
			}
		}
	}
}

// sizes yields the number and the bytes of the deltas above seq, in parts that the
// caller adds up, the newest first.
func (rs *runs) sizes(seq uint64) iter.Seq2[int, int64] {
	return func(yield func(int, int64) bool) {
		part := func(r run) bool {
			_, rest := r.cut(seq)
			return yield(int(rest.to-rest.from+1), rest.bytes)
		}
		for i := len(rs.newest) - 1; i >= 0 && rs.newest[i].to > seq; i-- {
			if !part(rs.newest[i]) {
				return
			}
		}
		for i := len(rs.packed) - 1; i >= 0 && rs.packed[i].to > seq; i-- {
			p := rs.packed[i]
			if p.from > seq {
				if !yield(p.deltas, p.bytes) {
					return
				}
				continue
			}
			for r := range p.all() {
				if r.to > seq && !part(r) {
					return
				}
			}
		}
	}
}

// edit calls change for each run that overlaps from..to, in order, until it returns
// false, and replaces the run by those that change passes to keep.
func (rs *runs) edit(from, to uint64, change func(r run, keep func(run)) bool) {
	var kept []run
	keep := func(r run) { kept = appendRun(kept, r) }
	more := true
	take := func(r run) {
		if more && r.to >= from && r.from <= to {
			more = change(r, keep)
		} else {
			keep(r)
		}
	}
	first := sort.Search(len(rs.packed), func(i int) bool { return rs.packed[i].to >= from })
	if first < len(rs.packed) && rs.packed[first].from <= to {
		begin := max(first-1, 0) // An edited pack may be joined with the one before or after.
		edited := slices.Clone(rs.packed[begin:first])
		end := first
		for over := false; !over && end < len(rs.packed); end++ {
			p := rs.packed[end]
			if over = !more || p.from > to; over {
				edited = appendPack(edited, p)
				continue
			}
			kept = kept[:0]
			for r := range p.all() {
				take(r)
			}
			for some := range slices.Chunk(kept, runsPerPack) {
				edited = appendPack(edited, packRuns(some))
			}
		}
		rs.packed = slices.Replace(rs.packed, begin, end, edited...)
	}
	if more && len(rs.newest) > 0 && rs.newest[0].from <= to {
		kept = nil
		for _, r := range rs.newest {
			take(r)
		}
		rs.setNewest(kept)
	}
}

// remove removes Seqs, which must be in the set, and sorted.
func (rs *runs) remove(seqs []uint64) {
	if len(seqs) == 0 {
		return
	}
	rs.edit(seqs[0], seqs[len(seqs)-1], func(r run, keep func(run)) bool {
		for len(seqs) > 0 && seqs[0] <= r.to {
			seq := seqs[0]
			seqs = seqs[1:]
			if r.from < seq {
				var head run
				head, r = r.cut(seq - 1)
				keep(head)
			}
			if r.to == seq { // cut would overflow at the greatest uint64.
				return len(seqs) > 0
			}
			_, r = r.cut(seq)
		}
		keep(r)
		return len(seqs) > 0
	})
}
