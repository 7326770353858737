// Package agent is the process that is measured: one informer, of warmwatch or of
// client-go, with handlers that count. Each run is a process of its own, so that
// memory and CPU time are those of one implementation.
//
// The parent writes a Spec as one line of JSON to its stdin, and then commands, one
// per line. The agent answers with Messages, one per line, on stdout, and ends when
// its stdin does.
package agent
