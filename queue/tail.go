package queue

import (
	"sort"

	"k8s.io/client-go/tools/cache"
)

const (
	// A tail larger than TailBytes/ackedTailShare does not wait for the next commit
	// to drop what was acknowledged.
	ackedTailShare = 8
	// A consumer that is TailBytes/farTailShare behind the tail is far from it.
	farTailShare = 2
	// For so many deltas a tail keeps its memory when it is empty.
	tailIdleDeltas = 1024
)

// pushTailLocked moves the tail to the front of its memory before it asks for more,
// if half of that has become free there.
func (q *DeltaFIFO) pushTailLocked(d Delta) {
	if n := len(q.tail); n == cap(q.tail) && n <= cap(q.tailArray)/2 {
		moved := append(q.tailArray, q.tail...)
		clear(q.tail)
		q.tail = moved
	}
	grows := len(q.tail) == cap(q.tail)
	q.tail = append(q.tail, d)
	if grows {
		q.tailArray = q.tail[:0]
	}
}

// dropAckedLocked drops from the tail what every consumer has acknowledged.
func (q *DeltaFIFO) dropAckedLocked(floor uint64) {
	q.dropTailLocked(sort.Search(len(q.tail), func(i int) bool { return q.tail[i].Seq > floor }))
}

// dropUnreadLocked drops from the tail what is stored and nobody will read from there
// soon: a consumer that is far behind reads from the DB.
func (q *DeltaFIFO) dropUnreadLocked() {
	floor := q.head
	for c := range q.consumers {
		at := c.cursor.Load()
		if at < q.tailBase && q.farLocked(at) {
			continue
		}
		floor = min(floor, at)
	}
	n := 0
	for n < len(q.tail) && q.tail[n].stored && q.tail[n].Seq <= floor {
		n++
	}
	q.dropTailLocked(n)
}

// farLocked reports whether more is stored between a cursor and the tail than the tail
// may have.
func (q *DeltaFIFO) farLocked(cursor uint64) bool {
	bytes := int64(0)
	for _, n := range q.runs.sizes(cursor) {
		if bytes += n; bytes > int64(q.tailMax/farTailShare) {
			return true
		}
	}
	return false
}

// dropTailLocked forgets the oldest deltas of the tail, and most of its memory if
// it is large and hardly used any more.
func (q *DeltaFIFO) dropTailLocked(n int) {
	for i := range q.tail[:n] {
		d := &q.tail[i]
		q.tailBytes -= d.SizeBytes
		q.tailBase = d.Seq
		if d.stored {
			q.runs.add(run{d.Seq, d.Seq, int64(d.SizeBytes), d.Type == cache.Deleted})
			q.folding.backlog += int64(d.SizeBytes)
			if d.Seq > q.durableHead {
				q.folding.pending += int64(d.SizeBytes)
			}
		}
	}
	clear(q.tail[:n]) // The objects can go now, the array later.
	q.tail = q.tail[n:]
	if cap(q.tailArray) > tailIdleDeltas && len(q.tail) < cap(q.tailArray)/4 {
		q.tail = append(make([]Delta, 0, 2*len(q.tail)+16), q.tail...)
		q.tailArray = q.tail[:0]
	}
}
