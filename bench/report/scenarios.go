package report

import (
	"fmt"

	"github.com/warmwatch/warmwatch/test/e2e/display"
)

// Kinds of objects.
const (
	Plain  = "Pods"
	Varied = "varied Pods"
)

// Scenarios.
const (
	ColdStart     = "cold start"
	WarmStart     = "warm start" // HasSynced does not wait: served from disk.
	CaughtUpStart = "warm start, caught up"
	ChangedStart  = "warm start, 1 % changed meanwhile"
	GoneStart     = "start after 410, 1 % changed meanwhile"
	Events        = "backlog of events"
	HotReads      = "reads, all objects decoded in memory"
	ColdReads     = "reads, no object in memory"
	FleetKept     = "fleet restarts, history kept"
	FleetGone     = "fleet restarts, after 410"

	Durable = ", durable handler" // Appended to Events and Updates.
)

// UpdateRates are the rates of Updates, a second.
var UpdateRates = []int{100, 1000}

// Updates is the scenario of a steady rate of updates.
func Updates(perSecond int) string {
	return fmt.Sprintf("%s updates a second", display.Thousands(perSecond))
}
