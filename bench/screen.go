package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/display"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// screen shows a run to a person: figures on out, what takes time on progressOut.
type screen struct {
	out, progressOut io.Writer
	begin            time.Time
}

// tell is for what takes time.
func (s *screen) tell(format string, args ...any) {
	elapsed := time.Since(s.begin).Round(time.Second)
	fmt.Fprintf(s.progressOut, "[%5s] "+format+"\n", append([]any{elapsed}, args...)...)
}

func (s *screen) progress(what string) workload.Progress {
	next := time.Now().Add(5 * time.Second)
	return func(done, total int) {
		if done < total && time.Now().Before(next) {
			return
		}
		next = time.Now().Add(5 * time.Second)
		s.tell("%s: %s of %s", what, display.Thousands(done), display.Thousands(total))
	}
}

// table prints one scenario.
func (s *screen) table(title string, comparisons []result.Comparison) {
	fmt.Fprintf(s.out, "\n%s\n", title)
	table := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  \twarmwatch (min … max)\tclient-go (min … max)\ttimes better than client-go, pair by pair")
	for _, c := range comparisons {
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", c.Warmwatch.Metric, report.Cell(c.Warmwatch), report.Cell(c.ClientGo), ratios(c.Ratios))
	}
	table.Flush()
}

func ratios(all []float64) string {
	var texts []string
	for _, r := range all {
		texts = append(texts, report.Ratio(r))
	}
	return strings.Join(texts, " ")
}
