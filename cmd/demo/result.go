package main

import (
	"runtime"
	"slices"
	"time"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// result is everything the demonstration found; --output=json prints it.
type result struct {
	OK      bool     `json:"ok"` // Every scene did what it says.
	Objects int      `json:"objects"`
	Server  string   `json:"server"`
	System  string   `json:"system"`
	Scenes  []*scene `json:"scenes"`
}

func newResult(objects int, server string) *result {
	return &result{Objects: objects, Server: server, System: runtime.GOOS + "/" + runtime.GOARCH + ", " + runtime.Version(), Scenes: []*scene{}}
}

// scene is one situation, played with both implementations.
type scene struct {
	Name      string  `json:"name"`
	Title     string  `json:"title"`
	Skipped   string  `json:"skipped,omitempty"` // Why it was not played.
	Claims    []claim `json:"claims,omitempty"`
	Warmwatch *run    `json:"warmwatch,omitempty"`
	ClientGo  *run    `json:"clientGo,omitempty"`
}

// claim is something that a scene says, and whether it came true.
type claim struct {
	Text   string `json:"text"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"` // Of a claim that did not.
}

// claim records a claim; detail is used only if it did not come true.
func (s *scene) claim(ok bool, text, detail string) {
	c := claim{Text: text, OK: ok}
	if !ok {
		c.Detail = detail
	}
	s.Claims = append(s.Claims, c)
}

func (s *scene) ok() bool { return !slices.ContainsFunc(s.Claims, func(c claim) bool { return !c.OK }) }

// run is one life of one agent. Times count from just before the cache was opened.
type run struct {
	HasSyncedMillis *float64       `json:"hasSyncedMillis"`         // Of the informer.
	AllAddedMillis  *float64       `json:"allAddedMillis"`          // Until OnAdd had been called for every object; null if it was not.
	CatchUpMillis   *float64       `json:"catchUpMillis,omitempty"` // From the return of the link to the last missed change.
	BytesReceived   int64          `json:"bytesReceived"`
	Requests        map[string]int `json:"requests"`
	Calls           agent.Calls    `json:"calls"` // Of the handler.
	Events          []agent.Change `json:"events,omitempty"`
	PeakMemoryBytes int64          `json:"peakMemoryBytes,omitempty"`
	Status          *agent.Status  `json:"status,omitempty"`

	deliveredAll time.Time // When the handler had got what was expected.
}

func runOf(r *agent.Report, events []agent.Change) *run {
	i := r.Informers[0]
	return &run{
		HasSyncedMillis: millisBetween(r.Begin, i.Synced),
		AllAddedMillis:  millisBetween(r.Begin, i.Added),
		BytesReceived:   i.BytesReceived,
		Requests:        i.Requests,
		Calls:           i.Calls,
		Events:          events,
		PeakMemoryBytes: r.PeakResident,
		Status:          i.Status,
		deliveredAll:    i.DeliveredAll,
	}
}

// millisBetween is nil for what has not happened.
func millisBetween(begin, end time.Time) *float64 {
	if end.IsZero() {
		return nil
	}
	return new(float64(end.Sub(begin)) / float64(time.Millisecond))
}

func (s *scene) played() bool { return s != nil && s.Warmwatch != nil && s.ClientGo != nil }

// ratio is 0 when one of the two was not measured.
func ratio(a, b *float64) float64 {
	if a == nil || b == nil || *b == 0 {
		return 0
	}
	return *a / *b
}
