// Package result holds the figures of one run of the benchmark: it collects them,
// summarises them, and keeps them in a file.
package result

// Metrics. Each has one unit, see Unit.
const (
	HasSynced  = "time to HasSynced"
	AllAdded   = "time to all OnAdd"
	CaughtUp   = "time until caught up"
	Received   = "bytes received"
	CPU        = "CPU time"
	PeakAnon   = "peak anonymous memory"
	SteadyAnon = "steady anonymous memory"
	FileSize   = "file size"

	EventRate      = "events a second"
	CPUPerEvent    = "CPU time per event"
	AchievedRate   = "updates a second, achieved"
	EventP99       = "event to handler, p99"
	WrittenPerByte = "bytes written per byte changed"

	GetTime     = "Get"
	ByIndexTime = "ByIndex of 50 objects"
	ListTime    = "List of everything"

	LastCaughtUp = "time until the last agent has caught up"
	ServerCPU    = "CPU time of the API server"
	ServerPeak   = "peak memory of the API server"
)

// metrics in the order in which they are shown.
var metrics = []struct {
	name, unit string // ms, µs, s, B, 1/s, or 1.
}{
	{HasSynced, "ms"}, {AllAdded, "ms"}, {CaughtUp, "ms"}, {LastCaughtUp, "ms"}, {Received, "B"},
	{ServerCPU, "s"}, {ServerPeak, "B"}, {CPU, "s"}, {PeakAnon, "B"}, {SteadyAnon, "B"}, {FileSize, "B"},
	{AchievedRate, "1/s"}, {EventRate, "1/s"}, {CPUPerEvent, "µs"}, {EventP99, "ms"}, {WrittenPerByte, "1"},
	{GetTime, "µs"}, {ByIndexTime, "µs"}, {ListTime, "ms"},
}
