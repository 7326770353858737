package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/display"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// screen shows the demonstration to a person: what happens on out, what takes time
// on progressOut.
type screen struct {
	out         io.Writer
	progressOut io.Writer
}

// tell is for what takes time.
func (s *screen) tell(format string, args ...any) {
	fmt.Fprintf(s.progressOut, "... "+format+"\n", args...)
}

func (s *screen) progress(verb string) workload.Progress {
	return func(done, total int) {
		s.tell("%s %s of %s Pods", verb, thousands(done), thousands(total))
	}
}

func (s *screen) heading(number int, title string) {
	fmt.Fprintf(s.out, "\n%d. %s\n", number, title)
}

func (s *screen) scene(sc *scene) {
	if sc.Skipped != "" {
		fmt.Fprintf(s.out, "   skipped: %s\n", sc.Skipped)
		return
	}
	for _, c := range sc.Claims {
		if c.OK {
			fmt.Fprintf(s.out, "   ok    %s\n", c.Text)
		} else {
			fmt.Fprintf(s.out, "   FAIL  %s\n         %s\n", c.Text, c.Detail)
		}
	}
	for _, e := range sc.Warmwatch.Events {
		fmt.Fprintf(s.out, "         %s\n", eventText(e))
	}
	table := s.table()
	fmt.Fprintln(table, "   \tHasSynced\tall OnAdd\treceived\trequests\tpeak memory\t")
	for _, r := range []struct {
		name string
		*run
	}{{agent.Warmwatch, sc.Warmwatch}, {agent.ClientGo, sc.ClientGo}} {
		fmt.Fprintf(table, "   %s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.name,
			millisText(r.HasSyncedMillis), millisText(r.AllAddedMillis), bytesText(r.BytesReceived),
			requestsText(r.Requests), bytesText(r.PeakMemoryBytes), catchUpText(r.CatchUpMillis))
	}
	table.Flush()
	if st := sc.Warmwatch.Status; st != nil && st.Cause != "" {
		fmt.Fprintf(s.out, "   warmwatch's cause: %s %s\n", st.Cause, st.Reason)
	}
}

func eventText(e agent.Change) string {
	switch {
	case e.Tombstone:
		return describe(e) + " (found by the relist; last known object delivered)"
	case e.Type == "MODIFIED" && e.Marked:
		return describe(e) + " (the API server's first half of a deletion)"
	}
	return describe(e)
}

func catchUpText(ms *float64) string {
	if ms == nil {
		return ""
	}
	return "up to date " + millisText(ms) + " after the link returned"
}

// summary prints the closing tables.
func (s *screen) summary(r *result) {
	fmt.Fprintf(s.out, "\n%s Pods, API server %s, %s\n\n", thousands(r.Objects), r.Server, r.System)
	table := s.table()
	fmt.Fprintln(table, "\tHasSynced\t\t\treceived\t\t\trequests\t\t")
	fmt.Fprintln(table, "scene\twarmwatch\tclient-go\tratio\twarmwatch\tclient-go\tratio\twarmwatch\tclient-go\tresult")
	for _, sc := range r.Scenes {
		s.summaryRow(table, sc)
	}
	table.Flush()
	if r.OK {
		fmt.Fprintln(s.out, "\nEvery scene did what it says.")
	} else {
		fmt.Fprintln(s.out, "\nNOT every scene did what it says; see FAIL above.")
	}
}

func (s *screen) summaryRow(table io.Writer, sc *scene) {
	if !sc.played() {
		fmt.Fprintf(table, "%s\t\t\t\t\t\t\t\t\tskipped: %s\n", sc.Name, sc.Skipped)
		return
	}
	w, c := sc.Warmwatch, sc.ClientGo
	verdict := "ok"
	if !sc.ok() {
		verdict = "FAIL"
	}
	received := 0.0
	if w.BytesReceived > 0 {
		received = float64(c.BytesReceived) / float64(w.BytesReceived)
	}
	fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", sc.Name,
		millisText(w.HasSyncedMillis), millisText(c.HasSyncedMillis), timesText(ratio(c.HasSyncedMillis, w.HasSyncedMillis)),
		bytesText(w.BytesReceived), bytesText(c.BytesReceived), timesText(received),
		requestsText(w.Requests), requestsText(c.Requests), verdict)
}

func (s *screen) table() *tabwriter.Writer {
	return tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
}

func requestsText(requests map[string]int) string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(requests)) {
		parts = append(parts, fmt.Sprintf("%d %s", requests[kind], kind))
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func millisText(ms *float64) string {
	if ms == nil {
		return "-"
	}
	return display.Value("ms", *ms)
}

func timesText(times float64) string {
	if times == 0 {
		return "-"
	}
	return display.Ratio(times)
}

func bytesText(n int64) string { return display.Value("B", float64(n)) }

func thousands(n int) string { return display.Thousands(n) }
