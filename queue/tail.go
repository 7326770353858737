package queue

import (
	"sort"

	"k8s.io/client-go/tools/cache"
)

const (
	// A tail larger than TailBytes/ackedTailShare drops acknowledged deltas at once,
	// not only with the next commit.
	ackedTailShare = 8
	// A consumer is far behind the tail if more than TailBytes/farTailShare is between.
	farTailShare = 2
	// A tail with room for more deltas than this releases memory that it hardly uses.
	tailIdleDeltas = 1024
)

// pushTailLocked appends a delta to the tail. If the array behind the tail is full, but
// its first half is free, the tail is moved there first.
func (q *Log) pushTailLocked(d Delta) {
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
func (q *Log) dropAckedLocked(floor uint64) {
	q.dropTailLocked(sort.Search(len(q.tail), func(i int) bool { return q.tail[i].Seq > floor }))
}

// dropUnreadLocked drops from the tail stored deltas that no consumer will read there
// soon: one that is far behind reads from the DB.
func (q *Log) dropUnreadLocked() {
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

// farLocked reports whether a cursor is far behind the tail, see farTailShare.
func (q *Log) farLocked(cursor uint64) bool {
	bytes := int64(0)
	for _, n := range q.runs.sizes(cursor) {
		if bytes += n; bytes > int64(q.tailMax/farTailShare) {
			return true
		}
	}
	return false
}

// dropTailLocked drops the n oldest deltas of the tail, and releases most of its memory
// if that is large and hardly used any more.
func (q *Log) dropTailLocked(n int) {
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
	clear(q.tail[:n]) // The objects can be freed before the array.
	q.tail = q.tail[n:]
	if cap(q.tailArray) > tailIdleDeltas && len(q.tail) < cap(q.tailArray)/4 {
		q.tail = append(make([]Delta, 0, 2*len(q.tail)+16), q.tail...)
		q.tailArray = q.tail[:0]
	}
}
