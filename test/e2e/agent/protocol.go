package agent

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/warmwatch/warmwatch"
)

// The two implementations.
const (
	Warmwatch = "warmwatch"
	ClientGo  = "client-go"
)

// AnnotationRound names a round of changes; recorders look at it.
const AnnotationRound = "bench/round"

// Spec is one informer.
type Spec struct {
	Impl      string // Warmwatch or ClientGo.
	Resource  schema.GroupVersionResource
	Kind      string
	Namespace string
	Index     string    // Name of a label, which is the name of the index, too. Empty: no index.
	Handlers  []Handler // Default: one plain handler, which tells of nothing.
	// Reconcilers, of warmwatch only, tell of each reconcile that succeeds. Many are slow, or fail.
	Reconcilers []Reconciler
	Children    bool // It makes a child for each ConfigMap that has none by the index LabelParent.
	Sums        bool // Contents and Events have a sum of the whole object.

	// How to reach the API server.
	Kubeconfig, Context string
	Dial                string // Address of a link to it. Empty: no link.

	// Of warmwatch.
	File         string // Informers with the same file share one Cache.
	MemoryOnly   bool   // It does without its file.
	MemoryBudget int64
	Wrapped      bool // Requests are compared with the identity, see Cache.WrapTransport.
	// ServeStaleAfter is that of warmwatch.Options.
	ServeStaleAfter time.Duration

	// From is a resourceVersion: the informer lists what there was then, and watches
	// what has come since from the first expect on.
	From string
	// Stamped: latencies of updates from an API server are taken.
	Stamped bool
	// Source is where Pods come from instead of an API server: Made are made up. An
	// expect has it send updates.
	Made   int
	Source *Source `json:"-"` // Within a process: this one.
}

// Handler is one of an informer.
type Handler struct {
	Name        string
	Durable     bool // For client-go it is a plain one.
	Tell        bool // An Event for each call but those of the initial list,
	TellInitial bool // and for those too.
	Slow        bool // Now and then it takes longer than a commit.
	// Late is how long after the others it is added.
	Late time.Duration
}

// Reconciler is one of an informer.
type Reconciler struct {
	Name    string
	Workers int
	Epoch   string
}

// Expect is a measurement. What is expected is expected of each handler.
type Expect struct {
	Initial      int    // OnAdd calls of the initial list.
	Changed      int    // Objects of the round.
	Round        string // AnnotationRound of those.
	Updates      int    // OnUpdate calls. A Source sends as many.
	Collect      bool   // Garbage of the measurement before is collected.
	SampleMemory bool   // Peaks of the memory are wanted.
}

// What can be awaited of all informers.
const (
	Synced    = "synced"    // HasSynced.
	Delivered = "delivered" // What was expected has come. It has not if warmwatch relists meanwhile.
	Live      = "live"      // warmwatch watches. client-go does soon after it has synced.
)

// Command is one line from the parent. The agent does what there is of it, in this
// order, and then answers.
type Command struct {
	Start     []Spec        `json:",omitempty"` // Open and run informers.
	Expect    *Expect       `json:",omitempty"` // Begin a measurement: the first just before files are opened.
	Updates   int           `json:",omitempty"` // Expect so many of the measurement that has begun.
	Await     []string      `json:",omitempty"` // Wait until all informers are as wanted.
	Pause     time.Duration `json:",omitempty"` // Do nothing.
	Benchmark string        `json:",omitempty"` // Run one of those that Main was given,
	BenchTime time.Duration `json:",omitempty"` // for about so long.
	Report    bool          `json:",omitempty"` // Say what was measured, and how much memory is left without garbage.
	Contents  bool          `json:",omitempty"` // Say what the stores contain.
}

// Message is one line from the agent: an Event, or the answer to a Command.
type Message struct {
	Event     *Event     `json:",omitempty"`
	Report    *Report    `json:",omitempty"`
	Contents  []Contents `json:",omitempty"`
	Benchmark *Benchmark `json:",omitempty"`
	Error     string     `json:",omitempty"` // The agent gives up.
}

// Event is one call of a handler, or one reconcile.
type Event struct {
	Resource, Handler string
	At                time.Time
	Initial           bool // OnAdd of the initial list.
	Key               string
	Old, New          string // As ContentOf says. New is empty where a reconcile has found nothing.
	Change            Change
	Deleted           []string // Likewise, the deleted objects that a reconcile had at hand.
}

// Change is an Event for people.
type Change struct {
	Type      string `json:"type"` // ADDED, MODIFIED, DELETED, RECONCILED
	Name      string `json:"name"`
	OldRV     string `json:"oldResourceVersion,omitempty"`
	NewRV     string `json:"newResourceVersion,omitempty"`
	Marked    bool   `json:"marked,omitempty"`            // The object has a deletionTimestamp.
	Tombstone bool   `json:"finalStateUnknown,omitempty"` // A deletion that was found by a relist.
}

// Report is what was measured since the last start or expect.
type Report struct {
	Begin        time.Time
	Elapsed      time.Duration // Since Begin.
	CPU          time.Duration // Of the process.
	DiskWritten  float64       // Bytes that the process has caused to be written.
	PeakAnon     float64       // Anonymous memory, if it was to be sampled.
	SteadyAnon   float64       // Without garbage.
	PeakResident int64         // Since the process began.
	Informers    []Measured
}

// Measured is what was measured of one informer. Times are zero for what has not
// happened.
type Measured struct {
	BytesReceived int64
	Requests      map[string]int // By kind.
	Synced        time.Time      // Of the first measurement only.
	// Of the first handler; DeliveredAll is when it and all others had got what was expected.
	Added        time.Time // The last initial OnAdd.
	DeliveredAll time.Time
	Calls        Calls
	Latency      Latency
	Relists      int     // Whatever brings a whole list.
	Status       *Status // Of warmwatch only.
	FileSize     float64
}

// Calls counts a handler's calls.
type Calls struct {
	Initial int `json:"initial"` // OnAdd with isInInitialList.
	Added   int `json:"added"`
	Updated int `json:"updated"`
	Deleted int `json:"deleted"`
}

// Latency has a value for each update, in milliseconds: how long after it was decoded
// the handler was called.
type Latency struct {
	Event        []float64
	BytesChanged float64
}

// Status is warmwatch's InformerStatus.
type Status struct {
	Phase           string `json:"phase"`
	Live            bool   `json:"live"` // The phase is PhaseLive.
	StartedFrom     string `json:"startedFrom"`
	Cause           string `json:"cause"`
	Reason          string `json:"reason,omitempty"`
	ResourceVersion string `json:"resourceVersion"`
	Objects         int    `json:"objects"`
	Unreconciled    int    `json:"unreconciled,omitempty"` // Keys of all reconcilers.
	Relists         int    `json:"relists"`
	Resumes         int    `json:"resumes"`
	Error           string `json:"error,omitempty"`
}

func statusOf(s warmwatch.InformerStatus) *Status {
	to := &Status{
		Phase: string(s.Phase), Live: s.Phase == warmwatch.PhaseLive,
		StartedFrom: s.StartedFrom, Cause: string(s.Cause), Reason: s.Reason, ResourceVersion: s.ResourceVersion,
		Objects: s.Objects, Relists: s.Relists, Resumes: s.Resumes,
	}
	for _, r := range s.Reconcilers {
		to.Unreconciled += r.Keys
	}
	if s.Err != nil {
		to.Error = s.Err.Error()
	}
	return to
}

// Contents is what is in the store of one informer.
type Contents struct {
	Resource string
	Objects  map[string]string // ContentOf by key.
	Status   *Status
	IndexErr string // What is wrong with the index.
}

// Benchmark is a testing.BenchmarkResult.
type Benchmark struct {
	NanosPerOp float64
	Extra      map[string]float64
}

// failure is an error of the agent, as its parent knows it.
func (m Message) failure() error {
	if m.Error == "" {
		return nil
	}
	return fmt.Errorf("agent: %s", m.Error)
}
