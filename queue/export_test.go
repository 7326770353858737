package queue

// TailBytes returns the size of the deltas in the tail.
func TailBytes(q *Log) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for i := range q.tail {
		n += q.tail[i].SizeBytes
	}
	return n
}
