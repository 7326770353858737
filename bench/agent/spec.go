package agent

import (
	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch/bench/result"
)

// What an agent does, and what the parent says to it meanwhile.
const (
	ModeStart   = "start"   // Start, settle, report.
	ModeRelist  = "relist"  // Start; "ready"; after CommandGo, which comes with a lost history, catch up.
	ModeEvents  = "events"  // Start before a backlog of events; "ready"; after CommandGo, drain it.
	ModeLatency = "latency" // Start; "ready"; for each CommandPhase and CommandCollect, report one phase.
	ModeFleet   = "fleet"   // Many informers; "ready"; after CommandGo, start them all.
	ModeMemory  = "memory"  // Without a server: reads, then latencies at each of Rates.

	CommandGo      = "go"
	CommandPhase   = "phase"
	CommandCollect = "collect" // With the number of events in the phase.
)

// Annotations of changed objects.
const (
	AnnotationRound = "bench/round" // Names the round of changes.
	AnnotationSent  = "bench/sent"  // When the update was sent, in Unix nanoseconds.
	exactListLimit  = 500           // Page size of lists that go to etcd.
	indexApp        = "app"         // Of the label of that name.
	durableName     = "bench"       // Of the durable handler.
)

// Spec is what an agent is to do.
type Spec struct {
	Mode       string
	Impl       string // One of result.Impls.
	Server     Server
	Resource   string // pods, configmaps, gadgets.
	Namespace  string
	Dial       string // Address of a link to the API server. Empty: no link.
	File       string // Of warmwatch. In ModeFleet: the common beginning of the names.
	Durable    bool   // The handler of warmwatch is a durable one.
	MemoryOnly bool   // warmwatch does without its file.
	Handlers   int    // Default 1.
	Agents     int    // Of ModeFleet.
	Objects    int    // How many there are.
	Initial    int    // How many OnAdd of the initial state are expected.
	Changed    int    // How many objects of the round are expected besides.
	Round      string
	Resumes    bool    // warmwatch is to resume: if it relists, the run does not count.
	Relists    bool    // Likewise the other way round.
	From       string  // ModeEvents: the resourceVersion before the backlog.
	Events     int     // ModeEvents: how many events the backlog has.
	Rates      []int   // ModeMemory: updates a second.
	Seconds    float64 // ModeMemory: of each rate, and of all benchmarks together.
}

// Server is how to reach the API server.
type Server struct {
	Host, Token string
	CA          []byte
}

// ServerOf is the part of cfg that agents need.
func ServerOf(cfg *rest.Config) Server {
	return Server{Host: cfg.Host, Token: cfg.BearerToken, CA: cfg.CAData}
}

func (s Server) config() *rest.Config {
	return &rest.Config{
		Host:            s.Host,
		BearerToken:     s.Token,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.CA},
		QPS:             -1, // No limit.
		WarningHandler:  rest.NoWarnings{},
	}
}

func (s Spec) warm() bool { return s.Impl == result.Warmwatch }

// Message is one line of an agent.
type Message struct {
	Ready   bool               `json:"ready,omitempty"`
	Figures map[string]float64 `json:"figures,omitempty"` // By metric.
	Skipped string             `json:"skipped,omitempty"` // Instead of figures: why there are none.
	Error   string             `json:"error,omitempty"`   // The agent gives up.
}
