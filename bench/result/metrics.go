// Package result holds the figures of one run of the benchmark: it collects them,
// summarises them, and keeps them in a file.
package result

import "time"

// Metrics. Each has one unit, see Unit.
const (
	HasSynced     = "time to HasSynced"
	AllAdded      = "time to all OnAdd"
	CaughtUp      = "time until caught up"
	FirstAction   = "time to the first action"
	Received      = "bytes received"
	Requests      = "requests"
	PeakHeap      = "peak heap"
	SteadyHeap    = "steady heap"
	PeakAnon      = "peak anonymous memory"
	SteadyAnon    = "steady anonymous memory"
	CPU           = "CPU time"
	Notifications = "notifications"
	FileSize      = "file size"
	DiskWritten   = "bytes written to disk"

	EventRate      = "events a second"
	CPUPerEvent    = "CPU time per event"
	AchievedRate   = "updates a second, achieved"
	EventP50       = "event to handler, p50"
	EventP99       = "event to handler, p99"
	EventP999      = "event to handler, p99.9"
	WriteP50       = "write to handler, p50"
	WriteP99       = "write to handler, p99"
	WriteP999      = "write to handler, p99.9"
	WrittenPerByte = "bytes written per byte changed"
	CommitRate     = "commits a second"

	GetTime      = "Get"
	ByIndexTime  = "ByIndex of 50 objects"
	ListTime     = "List of everything"
	ReadersRate  = "Gets a second of 4 readers, while events pass"
	ReadersEvent = "events a second beside 4 readers"

	LastSynced   = "time until the last agent has synced"
	LastCaughtUp = "time until the last agent has caught up"
	ServerCPU    = "CPU time of the API server"
	ServerPeak   = "peak memory of the API server"
	AgentsCPU    = "CPU time of all agents"
)

// units in the order in which metrics are shown.
var units = []struct{ metric, unit string }{
	{HasSynced, "ms"}, {AllAdded, "ms"}, {CaughtUp, "ms"}, {FirstAction, "ms"},
	{LastSynced, "ms"}, {LastCaughtUp, "ms"},
	{ServerCPU, "s"}, {ServerPeak, "B"},
	{Received, "B"}, {Requests, "1"}, {Notifications, "1"},
	{CPU, "s"}, {AgentsCPU, "s"},
	{PeakHeap, "B"}, {SteadyHeap, "B"}, {PeakAnon, "B"}, {SteadyAnon, "B"},
	{FileSize, "B"}, {DiskWritten, "B"},
	{AchievedRate, "1/s"}, {EventRate, "1/s"}, {CPUPerEvent, "µs"},
	{EventP50, "ms"}, {EventP99, "ms"}, {EventP999, "ms"},
	{WriteP50, "ms"}, {WriteP99, "ms"}, {WriteP999, "ms"},
	{WrittenPerByte, "1"}, {CommitRate, "1/s"},
	{GetTime, "µs"}, {ByIndexTime, "µs"}, {ListTime, "ms"},
	{ReadersRate, "1/s"}, {ReadersEvent, "1/s"},
}

// Patience is how long an agent is given over a bad link. A time that it did not end
// in is Never.
const (
	Patience = 2 * time.Minute
	Never    = 1e15
)

// Unit of a metric: ms, µs, s, B, 1/s, or 1. Empty: there is no such metric.
func Unit(metric string) string {
	for _, u := range units {
		if u.metric == metric {
			return u.unit
		}
	}
	return ""
}

// Metrics are all metrics in the order in which they are shown.
func Metrics() []string {
	all := make([]string, len(units))
	for i, u := range units {
		all[i] = u.metric
	}
	return all
}

// MoreIsBetter tells rates from times and amounts.
func MoreIsBetter(metric string) bool {
	switch metric {
	case EventRate, AchievedRate, ReadersRate, ReadersEvent:
		return true
	}
	return false
}
