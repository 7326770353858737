package main

import "runtime"

// result is everything the demonstration found; --output=json prints it.
type result struct {
	OK      bool     `json:"ok"` // Every scene did what it says.
	Objects int      `json:"objects"`
	Server  string   `json:"server"`
	System  string   `json:"system"`
	Scenes  []*scene `json:"scenes"`
	Streams []*rates `json:"streams"`
	Figures []figure `json:"figures"`
}

func newResult(objects int, server string) *result {
	return &result{Objects: objects, Server: server, System: systemName(), Scenes: []*scene{}, Streams: []*rates{}}
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

func (s *scene) ok() bool {
	for _, c := range s.Claims {
		if !c.OK {
			return false
		}
	}
	return true
}

// run is one life of one agent. Times count from just before the cache was opened.
type run struct {
	HasSyncedMillis *float64       `json:"hasSyncedMillis"`         // Of the informer.
	AllAddedMillis  *float64       `json:"allAddedMillis"`          // Until OnAdd had been called for every object; null if it was not.
	CatchUpMillis   *float64       `json:"catchUpMillis,omitempty"` // From the return of the link to the last missed change.
	BytesReceived   int64          `json:"bytesReceived"`
	Requests        map[string]int `json:"requests"`
	Calls           calls          `json:"calls"` // Of the handler.
	Events          []event        `json:"events,omitempty"`
	PeakMemoryBytes int64          `json:"peakMemoryBytes,omitempty"`
	Status          *status        `json:"status,omitempty"`
}

// rates are the events a second that each kind of handler got of one stream.
type rates struct {
	Name      string             `json:"name"`
	Events    int                `json:"events"`
	BoundBy   string             `json:"boundBy"`
	PerSecond map[string]float64 `json:"perSecond"` // By agentKind.
	Skipped   string             `json:"skipped,omitempty"`
}

// figure compares warmwatch with its aim, if there is one for so many Pods. Missing an
// aim is not a failure.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Aim   string  `json:"aim,omitempty"`
	Met   *bool   `json:"met,omitempty"`
}

func systemName() string {
	return runtime.GOOS + "/" + runtime.GOARCH + ", " + runtime.Version()
}
