package queue

// TailBytes returns the size of the deltas in the tail.
func TailBytes(q *Log) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for i := range q.tail.deltas {
		n += q.tail.deltas[i].SizeBytes
	}
	return n
}

// Unacked returns the number of deltas that some consumer, or name without one, has not
// acknowledged.
func (q *Log) Unacked() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for p := range q.positions {
		n = max(n, q.behindLocked(p))
	}
	return n
}

// Unacked returns the number of items that Pop has not processed.
func Unacked(q *DeltaFIFO) int { return q.log.Unacked() }
