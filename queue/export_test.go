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

// Unacked returns the number of items that Pop has not processed.
func Unacked(q *DeltaFIFO) int { return q.log.Unacked() }
