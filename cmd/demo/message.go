package main

// The agent reads one command per line from stdin, and writes one message per
// line, as JSON, to stdout. It ends when stdin does.
const (
	commandReport = "report" // Answered with a report.
	commandDigest = "digest" // Answered with a digest of the cache.
	commandStream = "stream" // "stream N": the next N events are timed, and answered with a stream.
)

const (
	kindSynced = "synced" // The informer has synced.
	kindAdded  = "added"  // The handler has got as many initial OnAdd as were expected.
	kindEvent  = "event"  // The handler was called, not for the initial state.
	kindReport = "report"
	kindDigest = "digest"
	kindStream = "stream"
	kindError  = "error" // The agent gives up.
)

// message is what the agent says.
type message struct {
	Kind   string  `json:"kind"`
	Millis float64 `json:"millis,omitempty"` // synced, added: since just before the cache was opened.
	Event  *event  `json:"event,omitempty"`
	Report *report `json:"report,omitempty"`
	Digest *digest `json:"digest,omitempty"`
	Stream *stream `json:"stream,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// event is one call of the handler.
type event struct {
	Type      string `json:"type"` // ADDED, MODIFIED, DELETED
	Name      string `json:"name"`
	OldRV     string `json:"oldResourceVersion,omitempty"`
	NewRV     string `json:"newResourceVersion,omitempty"`
	Marked    bool   `json:"marked,omitempty"`            // The object has a deletionTimestamp.
	Tombstone bool   `json:"finalStateUnknown,omitempty"` // A deletion that was found by a relist.
}

// calls counts the handler's calls.
type calls struct {
	Initial int `json:"initial"` // OnAdd with isInInitialList.
	Added   int `json:"added"`
	Updated int `json:"updated"`
	Deleted int `json:"deleted"`
}

// report is what an agent knows of itself.
type report struct {
	BytesReceived   int64          `json:"bytesReceived"`
	Requests        map[string]int `json:"requests"`
	Calls           calls          `json:"calls"`
	PeakMemoryBytes int64          `json:"peakMemoryBytes"`
	Status          *status        `json:"status,omitempty"` // Of warmwatch only.
}

// status is warmwatch's InformerStatus.
type status struct {
	Phase           string `json:"phase"`
	Live            bool   `json:"live"` // The phase is PhaseLive.
	StartedFrom     string `json:"startedFrom"`
	Reason          string `json:"reason"`
	ResourceVersion string `json:"resourceVersion"`
	Objects         int    `json:"objects"`
	UnackedDeltas   int    `json:"unackedDeltas"`
	Relists         int    `json:"relists"`
	Resumes         int    `json:"resumes"`
	Error           string `json:"error,omitempty"`
}

// digest tells whether two sets of objects are the same.
type digest struct {
	Objects int    `json:"objects"`
	Sum     string `json:"sum"` // Over name, uid and resourceVersion of each object.
}

// stream is the time that a run of events took.
type stream struct {
	Events int     `json:"events"`
	Millis float64 `json:"millis"` // From the first to the last call of the handler.
}
