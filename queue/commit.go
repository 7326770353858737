package queue

import (
	"slices"
	"sort"

	"github.com/warmwatch/warmwatch/persist"
)

// maxTrimPerCommit bounds what one commit removes, so that its hook is short.
const maxTrimPerCommit = 20_000

// beforeCommit stores the cursors and removes acknowledged deltas. It runs under the
// DB's lock.
func (q *Log) beforeCommit(b *persist.Batch) {
	q.kicked.Store(false)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.headsApart = 2
	for c := range q.consumers {
		if c.name != "" {
			q.storeLocked(b, durablePrefix+c.name, c.at())
		}
	}
	for name, c := range q.absent {
		q.storeLocked(b, durablePrefix+name, c)
	}
	q.trimLocked(b)
	q.rewriteAsideLocked(b)
	q.storeStateLocked(b)
}

func (q *Log) storeLocked(b *persist.Batch, key string, c cursor) {
	if old, ok := q.storedCursors[key]; ok && old == c {
		return
	}
	q.storedCursors[key] = c
	b.Put(q.cursors, key, c)
}

func (q *Log) trimLocked(b *persist.Batch) {
	floor, left := q.floorLocked(), maxTrimPerCommit
	q.dropAckedLocked(floor)
	q.dropUnreadLocked()
	q.runs.edit(0, floor, func(r run, keep func(run)) bool {
		seq := r.from
		for ; seq <= min(r.to, floor) && left > 0; seq++ {
			q.removeDeltaLocked(b, seq, r.deletions)
			left--
		}
		if _, rest := r.cut(seq - 1); rest.from <= rest.to {
			keep(rest)
		}
		return left > 0
	})
	if left < maxTrimPerCommit {
		q.measureLocked()
	}
	if left == 0 {
		b.Urgent() // There is more to remove.
	}
}

// maxBatchHeads bounds batchHeads while commits fail and are tried again.
const maxBatchHeads = 1024

// noteHeadLocked notes which batch has the head. Batches between two calls of
// beforeCommit become durable together, so the last one's head is enough. But the first
// that is published after such a call may be from before it, so it is kept apart.
func (q *Log) noteHeadLocked(batch uint64) {
	if batch <= q.durable {
		q.durableHead = q.head
		q.measurePendingLocked()
		return
	}
	if n := len(q.batchHeads); n > 0 && (q.headsApart == 0 || q.batchHeads[n-1].batch == batch || n == maxBatchHeads) {
		q.batchHeads[n-1] = batchHead{batch, q.head}
		return
	}
	q.batchHeads = append(q.batchHeads, batchHead{batch, q.head})
	q.headsApart = max(q.headsApart-1, 0)
}

// afterCommit lets durable consumers read up to the last durable batch.
func (q *Log) afterCommit(durable uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.durable = max(q.durable, durable)
	n := sort.Search(len(q.batchHeads), func(i int) bool { return q.batchHeads[i].batch > durable })
	if n > 0 {
		q.durableHead = q.batchHeads[n-1].seq
		q.batchHeads = slices.Delete(q.batchHeads, 0, n)
		q.measurePendingLocked()
	}
	q.cond.Broadcast()
}

// afterDamage makes the next commit write all cursors, the state, and what is set aside, into the
// new file.
func (q *Log) afterDamage(error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.storedCursors)
	q.writtenState = nil
	q.aside.rewrite = q.aside.some.Load()
}
