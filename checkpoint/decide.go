package checkpoint

import "fmt"

// An Action is a way to start.
type Action string

const (
	// ActionResume means that the watch goes on at the checkpoint.
	ActionResume Action = "resume"
	// ActionRelist means to list, compare with the stored objects, and apply the difference.
	ActionRelist Action = "relist"
	// ActionDiscard means to list the newest state. The stored objects are not served. They are compared with the list by
	// content.
	ActionDiscard Action = "discard"
)

// A Decision says how to start, and what to do with the stored objects.
type Decision struct {
	Action Action
	// Serve: the stored objects may be served before the server has answered.
	Serve bool
	// Rewrite: the relist writes every record anew, even if it looks unchanged.
	Rewrite bool
	// RebuildIndices: the index entries must be rebuilt from the objects.
	RebuildIndices bool
	// StartOverPending: durable handlers with pending deltas start over, because another program may have transformed the
	// objects of these deltas.
	StartOverPending bool
	// StartOverAll: all durable handlers start over, because the file may not say what they have acknowledged.
	StartOverAll bool
	// Cause is the first thing that does not match.
	Cause Cause
	// Reason is for people. It names everything that does not match, and is empty if the Cause says all.
	Reason string
}

// Want is what the program now expects to find.
type Want struct {
	Identity
	// ClusterID is empty if it is not known yet, or nobody asked for it.
	ClusterID        string
	SchemaVersion    string
	TransformVersion string
	IndexVersion     string
	// NeverResume is set for resources whose history the server does not keep, such as core Events. Such a server
	// accepts a watch at any resourceVersion, and does not say that it has forgotten the events since.
	NeverResume bool
}

// Evidence is what a start finds in the file.
type Evidence struct {
	// Record is the checkpoint. It is nil if there is none or it cannot be read.
	Record *Record
	// Stored: there are objects, with or without a checkpoint.
	Stored bool
	// Unread: nobody knows whether there is a checkpoint, because it could not be read.
	Unread bool
	// Incomplete: objects are missing, or nobody knows how many there should be.
	Incomplete bool
	// IndexErr is why the index entries may not match the objects.
	IndexErr error
	// RebuildErr is why the index entries could not be rebuilt: an index function fails on an object.
	RebuildErr error
}

// Decide compares the evidence with what the program wants. If several things are wrong, all their consequences apply:
// the outcome is the most careful one.
//
// Cluster IDs are compared only if both are known. Once the ID is known, call Decide again. If an unknown ID were a
// mismatch, a program that starts while the server is unreachable would drop its objects just when it needs them, and a
// program that begins to ask for the ID would drop them for no reason.
func Decide(e Evidence, want Want) Decision {
	d := Decision{Action: ActionResume, Serve: true}
	if e.Unread {
		d.relist(CauseDamaged)
		d.Rewrite, d.RebuildIndices, d.StartOverAll = true, true, true
		d.because("the checkpoint could not be read")
	}
	switch {
	case e.Record != nil:
		d.compare(e.Record, want)
	case e.Stored: // Nobody knows which server had these objects, and when.
		d.relist(CauseDamaged)
		d.Serve, d.Rewrite, d.StartOverPending = false, true, true
		d.because("there are objects, and no checkpoint that can be read")
	default:
		d.relist(CauseFirstStart)
		d.Serve, d.StartOverPending = false, true
	}
	// Readers must not take missing objects for deleted ones.
	if d.Serve && e.Incomplete {
		d.relist(CauseDamaged)
		d.Serve, d.Rewrite = false, true
		d.because("objects may be missing")
	}
	if e.IndexErr != nil {
		d.RebuildIndices = true
		d.because("index entries may be wrong: %v", e.IndexErr)
	}
	if d.Serve && e.RebuildErr != nil {
		d.relist(CauseDamaged)
		d.Serve, d.Rewrite = false, true
		d.because("the indices could not be rebuilt: %v", e.RebuildErr)
	}
	if d.Action == ActionResume {
		d.Cause = CauseResumed
	}
	return d
}

// compare applies the consequences of each mismatch between the checkpoint and want.
func (d *Decision) compare(found *Record, want Want) {
	if found.ClusterID != "" && want.ClusterID != "" && d.differs("cluster", found.ClusterID, want.ClusterID) {
		d.discard(CauseOtherCluster)
	}
	if found.Rewound {
		d.discard(CauseOtherCluster)
		d.because("not every object of another cluster has been compared yet")
	}
	if d.differs("identity", found.Identity, want.Identity) {
		d.discard(CauseOtherIdentity) // The space is named by the identity, so somebody has moved the data.
	}
	if d.differs("transform version", found.TransformVersion, want.TransformVersion) {
		// The objects are not what the handlers expect.
		d.relist(CauseTransformVersion)
		d.Serve, d.Rewrite, d.StartOverPending = false, true, true
	}
	if d.differs("schema version", found.SchemaVersion, want.SchemaVersion) {
		// The objects are valid, but lack fields that the other program did not know.
		d.relist(CauseSchemaVersion)
		d.Rewrite = true
	}
	if found.Rewrite {
		d.relist(CauseIncomplete)
		d.Rewrite = true
		d.because("not every record has been rewritten yet")
	}
	d.compareState(found.State)
	if !HasOrder(found.ResourceVersion) {
		d.relist(CauseNoVersion)
		d.because("no watch can start at resourceVersion %q", found.ResourceVersion)
	}
	if want.NeverResume {
		d.relist(CauseNeverResume)
		d.because("the server keeps no history of %s", want.resource())
	}
	if d.differs("index version", found.IndexVersion, want.IndexVersion) {
		// An index is a function of the objects (A5), so the watch may be resumed.
		d.RebuildIndices = true
	}
}

// compareState applies the consequences of a list that was not completed.
func (d *Decision) compareState(found State) {
	switch found {
	case StateComplete:
	case StateRefreshing:
		d.relist(CauseIncomplete) // Each object was once as stored, and none is missing.
		d.because("the last relist is incomplete")
	case StateSyncing:
		d.relist(CauseIncomplete)
		d.Serve, d.StartOverPending = false, true // Objects are missing, or some are of another transform version.
		d.because("the first list is incomplete")
	default:
		d.relist(CauseDamaged)
		d.Serve, d.StartOverPending = false, true
		d.because("the state %q is unknown", found)
	}
}

// relist makes the action at least a relist.
func (d *Decision) relist(cause Cause) {
	if d.Action == ActionResume {
		d.Action, d.Cause = ActionRelist, cause
	}
}

func (d *Decision) discard(cause Cause) {
	d.relist(cause)
	d.Action, d.Serve, d.Rewrite = ActionDiscard, false, true
}

func (d *Decision) because(format string, args ...any) {
	if d.Reason != "" {
		d.Reason += "; "
	}
	d.Reason += fmt.Sprintf(format, args...)
}

func (d *Decision) differs(what string, stored, now any) bool {
	if stored == now {
		return false
	}
	d.because("%s differs: %q is stored, now it is %q", what, stored, now)
	return true
}
