package report

import (
	"fmt"

	"github.com/warmwatch/warmwatch/test/e2e/display"
)

// Scenarios.
const (
	ColdStart        = "cold start"
	WarmStart        = "warm start" // HasSynced does not wait: served from disk.
	CaughtUpStart    = "warm start, caught up"
	BootStart        = "warm start, nothing in the page cache"
	ChangedStart     = "warm start, 1 % changed meanwhile"
	GoneStart        = "start after 410, 1 % changed meanwhile"
	GoneStartDurable = "start after 410, 1 % changed meanwhile, durable handler"
	OverLink         = ", over 10 Mbit/s and 50 ms" // Appended to those above,
	OverNarrowLink   = ", over 128 kbit/s and 300 ms"
	CutLink          = ", cut every 20 s" // and this to these.

	Controller  = "restart of the example controller"
	RunningGone = "410 under a running informer, 1 % changed meanwhile"

	Events1        = "backlog of events, 1 handler"
	Events10       = "backlog of events, 10 handlers"
	Events1Memory  = "backlog of events, 1 handler, persistence off"
	Events10Memory = "backlog of events, 10 handlers, persistence off"
	Events1Durable = "backlog of events, 1 durable handler"

	HotReads  = "reads, all objects decoded in memory"
	ColdReads = "reads, no object in memory"
	BusyReads = "reads while events pass"
	FleetKept = "fleet restarts, history kept"
	FleetGone = "fleet restarts, after 410"
)

// Updates is the scenario of a steady rate of updates; the agent has processors of its
// own.
func Updates(perSecond int, durable bool) string {
	text := fmt.Sprintf("%s updates a second", display.Thousands(perSecond))
	if durable {
		text += ", durable handler"
	}
	return text
}

// UpdatesBeside is the same where the agent and the API server share their processors.
func UpdatesBeside(perSecond int, durable bool) string {
	return Updates(perSecond, durable) + ", sharing processors"
}

// UpdatesFromMemory is the same without an API server.
func UpdatesFromMemory(perSecond int, durable bool) string {
	return Updates(perSecond, durable) + ", from memory"
}
