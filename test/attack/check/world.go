package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Mark is one thing that a session saw or did.
type Mark struct {
	Kind MarkKind `json:"k"`
	// Handler was notified of Key, or joined, or left.
	Handler string `json:"h,omitempty"`
	Key     string `json:"o,omitempty"`
	UID     string `json:"u,omitempty"`
	// Version of the object, the server, or the file at the begin of a session.
	Version int `json:"v,omitempty"`
	// Gone: the object was deleted. Lost: nobody knows at which version behind
	// this one.
	Gone bool `json:"g,omitempty"`
	Lost bool `json:"l,omitempty"`
	// MemoryOnly: the session has no file.
	MemoryOnly bool   `json:"m,omitempty"`
	Text       string `json:"t,omitempty"`
}

// A MarkKind says what a Mark is about.
type MarkKind string

// The kinds of marks.
const (
	Delivered MarkKind = "delivered"
	Serving   MarkKind = "serving" // The server is about to be at Version.
	Compacted MarkKind = "compacted"
	Started   MarkKind = "started"   // A session.
	Violation MarkKind = "violation" // Text says of what.
	Joined    MarkKind = "joined"    // Handler is a durable one that was not there before.
	Left      MarkKind = "left"      // It will not come back.
	Finished  MarkKind = "finished"  // The program has done all that it had to.
)

// The names of the handlers that are there always. All but Plain are durable.
const (
	Durable = "attack"
	Plain   = "plain"
)

// LastState is what a handler got of an object last.
type LastState struct {
	Version int
	UID     string
	Gone    bool // It was notified of the deletion.
	Lost    bool // By absence from a list: it was deleted behind Version.
	Unsure  bool // It was delivered in a session that had no file.
}

func (t LastState) before(o LastState) bool {
	return t.Version < o.Version || (t.Version == o.Version && !t.Lost && o.Lost)
}

// A Belief is what a handler believes to exist. It outlives crashes, as a
// handler's effects do.
type Belief struct {
	Known map[string]LastState
	// Newest is the newest state that it ever got of each key.
	Newest map[string]LastState
}

// MayMiss are the keys of which the file may know nothing: those that it was notified of in a session without a file,
// or where all, all that it believes. Of their deletion it may hear only because the program knows them (D3).
func (b Belief) MayMiss(all bool) (keys []string) {
	for key, t := range b.Known {
		if all || t.Unsure {
			keys = append(keys, key)
		}
	}
	return keys
}

// A World is all that the marks have said. Its zero value is where all begins.
type World struct {
	Version    int // Of the server.
	Compacted  int // History begins behind it.
	Beliefs    map[string]Belief
	MemoryOnly bool // The session.
	Finished   bool
	Violations []string
}

// Belief is that of a handler.
func (w *World) Belief(handler string) Belief {
	if w.Beliefs == nil {
		w.Beliefs = map[string]Belief{}
	}
	b, found := w.Beliefs[handler]
	if !found {
		b = Belief{map[string]LastState{}, map[string]LastState{}}
		w.Beliefs[handler] = b
	}
	return b
}

// Durables are the names of the durable handlers.
func (w *World) Durables() []string {
	w.Belief(Durable)
	return slices.DeleteFunc(slices.Sorted(maps.Keys(w.Beliefs)), func(name string) bool { return name == Plain })
}

// Clone copies it.
func (w *World) Clone() *World {
	c := *w
	c.Violations = slices.Clone(w.Violations)
	c.Beliefs = map[string]Belief{}
	for name, b := range w.Beliefs {
		c.Beliefs[name] = Belief{maps.Clone(b.Known), maps.Clone(b.Newest)}
	}
	return &c
}

// ApplyJSON applies marks as [Marker] writes them.
func (w *World) ApplyJSON(b []byte) error {
	for d := json.NewDecoder(bytes.NewReader(b)); d.More(); {
		var m Mark
		if err := d.Decode(&m); err != nil {
			return fmt.Errorf("mark %q: %w", b, err)
		}
		w.Apply(m)
	}
	return nil
}

// Brief says the first violations, and how many there are.
func (w *World) Brief() string { return strings.Join(shortenTo(2, w.Violations), "\n\t\t") }

// Apply applies one mark.
func (w *World) Apply(m Mark) {
	switch m.Kind {
	case Delivered:
		if b, there := w.Beliefs[m.Handler]; there { // Else it has left.
			b.deliver(m, w.MemoryOnly)
		}
	case Serving:
		w.Version = m.Version
	case Compacted:
		w.Compacted = m.Version
	case Started:
		w.Belief(Durable)
		w.MemoryOnly, w.Finished = m.MemoryOnly, false
		clear(w.Belief(Plain).Known) // It is notified of everything anew.
		if m.MemoryOnly {            // The file that there will be knows nothing of what is delivered now.
			for _, b := range w.Beliefs {
				clear(b.Newest)
			}
		}
	case Joined:
		w.Belief(m.Handler)
	case Left:
		delete(w.Beliefs, m.Handler)
	case Violation:
		w.Violations = append(w.Violations, m.Text)
	case Finished:
		w.Finished = true
	}
}

func (b Belief) deliver(m Mark, memoryOnly bool) {
	t := LastState{Version: m.Version, UID: m.UID, Gone: m.Gone, Lost: m.Lost, Unsure: memoryOnly}
	if !memoryOnly && b.Newest[m.Key].before(t) {
		b.Newest[m.Key] = t
	}
	if m.Gone {
		delete(b.Known, m.Key)
		return
	}
	if known, found := b.Known[m.Key]; found {
		t.Unsure = known.Unsure
	}
	b.Known[m.Key] = t
}
