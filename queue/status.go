package queue

import "time"

// HandlerStatus says what is pending for a handler.
type HandlerStatus struct {
	// Name of a durable handler, or the Go type of a plain one.
	Name    string
	Durable bool
	// Absent says that the name has no handler: none was added yet, or it was removed.
	Absent bool
	// InitialList says that the handler has not got OnAdd for all initial objects yet. They are read from the store,
	// and are not counted as undelivered.
	InitialList bool
	// Callback is the key of the object whose callback is running, and CallbackSince when that began; empty and zero if
	// none runs. A handler that hangs also keeps Run from returning. It is logged after a minute, and again each ten
	// minutes.
	Callback      string
	CallbackSince time.Time `json:",omitzero"`
	// Undelivered is the number of deltas in the queue that the handler has not acknowledged, and UndeliveredBytes
	// about their size. While it starts over, they are the pending deletions. See Options.MaxBacklogBytes.
	Undelivered      int
	UndeliveredBytes int64
	// OldestUndelivered is about when the oldest pending delta was applied. After a restart it is when the file was read.
	// Once that delta is not in memory any more, the time may be too early.
	OldestUndelivered time.Time `json:",omitzero"`
	// Restarts counts how often the handler has started over in this process, or has begun, by cause: New, Epoch,
	// Backlog (over MaxBacklogBytes, or MaxPendingBytes in memory), Damaged, TransformVersion, Unfinished (the last
	// process ended before the handler had all objects).
	Restarts map[string]int64 `json:",omitempty"`
	// Skipped counts the notifications that this process has skipped, because the handler has panicked on their object in
	// Options.MaxPanics processes.
	Skipped int64
}

// In sets the backlog in a status.
func (b Backlog) In(h *HandlerStatus) {
	h.Undelivered, h.UndeliveredBytes, h.OldestUndelivered = b.Deltas, b.Bytes, b.Oldest
}
