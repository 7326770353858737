package report

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// Change is a significant difference between two revisions.
type Change struct {
	Benchmark, Unit string
	Percent         float64 // Above zero: the figure has grown.
	Evidence        string  // Of the significance.
}

// String is for people.
func (c Change) String() string {
	return fmt.Sprintf("%s: %+.1f %% %s (%s)", c.Benchmark, c.Percent, c.Unit, c.Evidence)
}

// worse is by how many per cent the change is one for the worse.
func (c Change) worse() float64 {
	if strings.HasSuffix(c.Unit, "/s") {
		return -c.Percent
	}
	return c.Percent
}

// ReadBenchstat reads the output of benchstat -format=csv over two files: a table
// for each unit, with the columns "vs base" and "P".
func ReadBenchstat(text string) ([]Change, error) {
	reader := csv.NewReader(strings.NewReader(text))
	reader.FieldsPerRecord = -1
	var changes []Change
	unit, versus := "", -1
	for {
		record, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return changes, nil
		}
		if err != nil {
			return nil, fmt.Errorf("benchstat: %w", err)
		}
		if at := slices.Index(record, "vs base"); at > 1 {
			unit, versus = record[1], at
			continue
		}
		if versus < 0 || len(record) <= versus+1 || record[0] == "" || record[0] == "geomean" {
			continue
		}
		percent, err := strconv.ParseFloat(strings.TrimSuffix(record[versus], "%"), 64)
		if err != nil {
			continue // "~": no significant difference, or only one of them has the benchmark.
		}
		changes = append(changes, Change{Benchmark: record[0], Unit: unit, Percent: percent, Evidence: record[versus+1]})
	}
}

// Slower returns what got worse by more per cent than the threshold; and the
// changes, for better or worse, of client-go, whose code is the same.
func Slower(changes []Change, threshold float64) (slower, noise []Change) {
	for _, c := range changes {
		switch {
		case strings.Contains(c.Benchmark, "impl="+agent.ClientGo):
			if max(c.Percent, -c.Percent) > threshold {
				noise = append(noise, c)
			}
		case c.worse() > threshold:
			slower = append(slower, c)
		}
	}
	return slower, noise
}
