// Package agent is the process that the tests kill, the demonstration shows and the
// benchmark measures: informers of warmwatch or of client-go, with handlers that
// count, take times and, if they are to, tell of each call.
//
//	parent (Child)                            agent (Main, Run)
//	  ├── stdin: one Command a line, JSON ──────▶│ informers, recorders
//	  │◀─ stdout: one Message a line, JSON ──────┤ meter: bytes and requests
//	  └ kill -9, SIGSTOP, SIGCONT                └ the process: CPU, memory, disk
//
// Each Command has one answer. Events come in between, whenever a handler is called
// that is to tell. A handler has not returned before its Event is written, so that
// what a killed agent's handlers got is what its parent can read. The agent ends when its
// stdin does.
//
// The agent is the parent's own program, which calls Main first. Within a process,
// Agent does the same without a protocol.
package agent
