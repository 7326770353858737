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
	Figures []figure `json:"figures"`
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

	toldAll time.Time // When the handler had been told what was expected.
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
		toldAll:         i.ToldAll,
	}
}

// millisBetween is nil for what has not happened.
func millisBetween(begin, end time.Time) *float64 {
	if end.IsZero() {
		return nil
	}
	return new(float64(end.Sub(begin)) / float64(time.Millisecond))
}

// figure compares warmwatch with its aim, if there is one for so many Pods. Missing an
// aim is not a failure.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Aim   string  `json:"aim,omitempty"`
	Met   *bool   `json:"met,omitempty"`
}

// aimObjects is how many Pods the aims are for.
const aimObjects = 50_000

// figures compares what was measured with what warmwatch is to reach with aimObjects
// Pods. With another number of them there are no aims.
func (r *result) figures() (all []figure) {
	add := func(name string, value float64, aim string, met bool) {
		f := figure{Name: name, Value: value}
		if r.Objects == aimObjects {
			f.Aim, f.Met = aim, &met
		}
		all = append(all, f)
	}
	if s := r.scene("nothing-changed"); s.played() {
		faster, received := ratio(s.ClientGo.HasSyncedMillis, s.Warmwatch.HasSyncedMillis), float64(s.Warmwatch.BytesReceived)
		add("warm restart to HasSynced: times faster than client-go", faster, "at least 30", faster >= 30)
		add("warm restart with nothing changed: bytes received", received, "under 100,000", received < idleBytes)
	}
	if s := r.scene("caught-up"); s.played() {
		faster := ratio(s.ClientGo.HasSyncedMillis, s.Warmwatch.HasSyncedMillis)
		add("warm restart until the cache has caught up: times faster than client-go", faster, "at least 20", faster >= 20)
	}
	if s := r.scene("history-gone"); s.played() {
		fewer := float64(s.ClientGo.BytesReceived) / float64(s.Warmwatch.BytesReceived)
		add("restart after 410: times fewer bytes received than by client-go", fewer, "at least 20", fewer >= 20)
	}
	if s := r.scene("plain-handler"); s.played() {
		faster := ratio(s.ClientGo.AllAddedMillis, s.Warmwatch.AllAddedMillis)
		add("warm restart until a handler got every OnAdd: times faster than client-go", faster, "at least 5", faster >= 5)
	}
	return all
}

func (r *result) scene(name string) *scene {
	if i := slices.IndexFunc(r.Scenes, func(s *scene) bool { return s.Name == name }); i >= 0 {
		return r.Scenes[i]
	}
	return nil
}

func (s *scene) played() bool { return s != nil && s.Warmwatch != nil && s.ClientGo != nil }

// finish says whether all is as it should be.
func (r *result) finish() {
	r.OK = !slices.ContainsFunc(r.Scenes, func(s *scene) bool { return !s.ok() })
	r.Figures = r.figures()
}

// ratio is 0 when one of the two was not measured.
func ratio(a, b *float64) float64 {
	if a == nil || b == nil || *b == 0 {
		return 0
	}
	return *a / *b
}
