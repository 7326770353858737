package queue

import "time"

// HandlerStatus says what is pending for a handler.
type HandlerStatus struct {
	// Name of a durable handler, or the Go type of a plain one.
	Name    string
	Durable bool
	// Absent: no handler has the name. None was added in this process, or it was removed.
	Absent bool
	// InitialList: the handler has not got OnAdd for all initial objects yet, because it is new or starts over. They are
	// read from the store, and do not count as undelivered.
	InitialList bool
	// Callback is the key of the object whose callback is running, and CallbackSince when that began; empty and zero if
	// none runs. A callback that hangs keeps Run from returning. Each minute the log names one that has run for a minute.
	Callback      string
	CallbackSince time.Time `json:",omitzero"`
	// Undelivered is the number of deltas in the queue that the handler has not acknowledged, and UndeliveredBytes
	// about their size. While the handler starts over, only deletions count. See Options.MaxBacklogBytes.
	Undelivered      int
	UndeliveredBytes int64
	// OldestUndelivered is about when the oldest pending delta was applied. After a restart it is when the file was read.
	// Once that delta is not in memory any more, the time may be too early.
	OldestUndelivered time.Time `json:",omitzero"`
	// Restarts counts by cause how often the handler began or started over in this process. The causes are New, Epoch,
	// Backlog (over MaxBacklogBytes, or over MaxPendingBytes in memory), Damaged, TransformVersion, and Unfinished (the
	// last process ended before the handler had all objects).
	Restarts map[string]int64 `json:",omitempty"`
	// Skipped counts the notifications that this process has skipped, because the handler has panicked on their object in
	// Options.MaxPanics processes.
	Skipped int64
}

// In writes the backlog into h.
func (b Backlog) In(h *HandlerStatus) {
	h.InitialList, h.Undelivered, h.UndeliveredBytes, h.OldestUndelivered = b.StartsOver, b.Deltas, b.Bytes, b.Oldest
}
