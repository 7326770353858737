package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/persist"
)

// A status is what status prints.
type status struct {
	File      fileStatus       `json:"file"`
	Informers []informerStatus `json:"informers"`
	Handlers  []*backlog       `json:"handlers"`
	Findings  []finding        `json:"findings"`
	Timeline  []event          `json:"timeline"`
}

type fileStatus struct {
	Path      string `json:"path"`
	Bytes     int64  `json:"bytes"`
	FreeBytes int64  `json:"freeBytes"`
	Format    string `json:"format"`
}

type informerStatus struct {
	Informer        string           `json:"informer"`
	Objects         *int             `json:"objects"` // Null if the informer's state cannot be read.
	ResourceVersion string           `json:"resourceVersion,omitempty"`
	State           checkpoint.State `json:"state,omitempty"`
	// VouchedAt is when the server last confirmed that the objects are those at the resourceVersion.
	VouchedAt time.Time `json:"vouchedAt,omitzero"`
	ClusterID string    `json:"clusterID,omitempty"`
	// UnusedSince is as in [warmwatch.Unused]; zero if the last process used the informer.
	UnusedSince time.Time `json:"unusedSince,omitzero"`
}

// An event is one of the timeline, with the address of the page that says what to do.
type event struct {
	warmwatch.Event
	Runbook string
}

const runbook = "https://github.com/warmwatch/warmwatch/blob/main/docs/operations.md#"

func newStatus() *cobra.Command {
	cmd, _ := newReader("status FILE", "Show what is in the file, what is wrong with it, and what happened last", cobra.ExactArgs(1), func(_ context.Context, f *file, _ []string) (*output, error) {
		st, err := f.status()
		return st.output(), err
	})
	return cmd
}

func (f *file) fileStatus() fileStatus {
	m := f.Metrics()
	return fileStatus{f.path, m.Bytes, m.FreeBytes, persist.FormatVersion}
}

// status returns the state of a file. After an error it is incomplete.
func (f *file) status() (status, error) {
	st := status{File: f.fileStatus(), Informers: []informerStatus{}, Handlers: []*backlog{}}
	timeline, errs := f.timeline()
	st.Timeline = timeline
	for _, i := range f.informers {
		backlogs, err := f.pending(i)
		errs = errors.Join(errs, err)
		st.Handlers = append(st.Handlers, backlogs...)
		if i.space == workqueuesSpace {
			continue
		}
		s := informerStatus{Informer: i.name, UnusedSince: i.unused}
		if i.index != nil {
			s.Objects = new(i.index.Len())
			i.index.Complete() // What is missing is a finding.
		}
		if r := i.record; r != nil {
			s.ResourceVersion, s.State, s.VouchedAt, s.ClusterID = r.ResourceVersion, r.State, r.VouchedAt, r.ClusterID
		}
		st.Informers = append(st.Informers, s)
	}
	st.Findings = append([]finding{}, f.findings...)
	return st, errs
}

// timeline returns the events of the file, oldest first. One that cannot be read is left out.
func (f *file) timeline() (all []event, err error) {
	all = []event{}
	err = f.scan(persist.Bucket{Space: timelineSpace, Name: timelineBucket}, func(it *persist.Item) error {
		if e, err := persist.ReadJSON[warmwatch.Event](it); err == nil {
			all = append(all, event{e, runbook + strings.ToLower(string(e.Code))})
		}
		return nil
	})
	return all, err
}

func (st status) output() *output {
	out := &output{value: st}
	size := fmt.Sprintf("%s, %s free, format %s", sizeOf(st.File.Bytes), sizeOf(st.File.FreeBytes), st.File.Format)
	files := table{rows: [][]string{{"FILE", st.File.Path}, {"SIZE", size}}}
	informers := table{header: []string{"INFORMER", "OBJECTS", "RESOURCEVERSION", "CONFIRMED", "STATE", "CLUSTER"}, wide: 1}
	for _, i := range st.Informers {
		objects, state := "-", cmp.Or(string(i.State), "unknown")
		if i.Objects != nil {
			objects = strconv.Itoa(*i.Objects)
		}
		if !i.UnusedSince.IsZero() {
			state += ", unused since " + timeOf(i.UnusedSince)
		}
		informers.add(i.Informer, objects, cmp.Or(i.ResourceVersion, "-"), timeOf(i.VouchedAt), state, cmp.Or(i.ClusterID, "-"))
		out.names = append(out.names, i.Informer)
	}
	handlers := table{header: []string{"HANDLER", "DELTAS", "KEYS", "INFORMER"}}
	for _, b := range st.Handlers {
		handlers.add(b.title(), strconv.Itoa(b.Deltas), strconv.Itoa(b.Keys), b.Informer)
	}
	out.tables = []table{files, informers, handlers, findingsTable(st.Findings), eventsTable(st.Timeline)}
	return out
}

// shownEvents is how many events a table has.
const shownEvents = 10

func eventsTable(events []event) table {
	t := table{header: []string{"TIME", "CODE", "DETAILS, RUNBOOK"}}
	for _, e := range events[max(0, len(events)-shownEvents):] {
		what := []string{e.Informer, e.Handler, e.Cause, e.Message}
		for _, name := range slices.Sorted(maps.Keys(e.Numbers)) {
			what = append(what, fmt.Sprintf("%s=%v", name, e.Numbers[name]))
		}
		if e.Times > 1 {
			what = append(what, fmt.Sprintf("(%d times)", e.Times))
		}
		what = slices.DeleteFunc(append(what, e.Runbook), func(s string) bool { return s == "" })
		t.add(timeOf(e.Time), string(e.Code), strings.Join(what, " ")) // One column: some are long.
	}
	return t
}

func findingsTable(findings []finding) table {
	t := table{header: []string{"FINDING", "BUCKET", "KEY", "INFORMER"}}
	for _, found := range findings {
		t.add(found.Message, cmp.Or(found.Bucket, "-"), cmp.Or(found.Key, "-"), cmp.Or(found.Informer, "-"))
	}
	return t
}
