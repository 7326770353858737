package checkpoint

import (
	"cmp"
	"fmt"
)

// A Decision says how to start, and what to do with the stored objects.
type Decision struct {
	// Serve: the stored objects may be served before the server has answered.
	Serve bool
	// Rewrite: the relist writes every record anew, even if it looks unchanged.
	Rewrite bool
	// Newest: the relist asks for the newest state, because the versions of the stored objects say nothing about this
	// server.
	Newest bool
	// RebuildIndices: the index entries must be rebuilt from the objects.
	RebuildIndices bool
	// StartOverPending: durable handlers with pending deltas start over, because another program may have transformed the
	// objects of these deltas.
	StartOverPending bool
	// Cause is the first thing that does not match. With CauseResumed the watch goes on at the checkpoint. With any other
	// cause all objects are listed and compared with the stored ones.
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
	// Incomplete: objects are missing, nobody knows how many there should be, or an index function fails on one, so that
	// it would be in no index.
	Incomplete bool
	// IndexErr is why the index entries may not match the objects.
	IndexErr error
}

// Decide compares the evidence with what the program wants. If several things are wrong, all their consequences apply:
// the outcome is the most careful one.
//
// Cluster IDs are compared only if both are known. Once the ID is known, call Decide again. If an unknown ID were a
// mismatch, a program that starts while the server is unreachable would drop its objects just when it needs them, and a
// program that begins to ask for the ID would drop them for no reason.
func Decide(e Evidence, want Want) Decision {
	d := Decision{Serve: true}
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
		d.because("objects may be missing, or missing in an index")
	}
	if e.IndexErr != nil {
		d.RebuildIndices = true
		d.because("index entries may be wrong: %v", e.IndexErr)
	}
	d.relist(CauseResumed) // If nothing above is a cause.
	return d
}

// compare applies the consequences of each mismatch between the checkpoint and want.
func (d *Decision) compare(found *Record, want Want) {
	if found.ClusterID != "" && want.ClusterID != "" && d.differs("cluster", found.ClusterID, want.ClusterID) {
		d.foreign(CauseOtherCluster)
	}
	if d.differs("identity", found.Identity, want.Identity) {
		// The space has the identity in its name. So somebody has moved the data, or nobody knows what was listed.
		d.foreign(CauseOtherIdentity)
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
		d.because("the first list of these objects is incomplete")
	default:
		d.relist(CauseDamaged)
		d.Serve, d.StartOverPending = false, true
		d.because("the state %q is unknown", found)
	}
}

// relist notes the first cause.
func (d *Decision) relist(cause Cause) { d.Cause = cmp.Or(d.Cause, cause) }

// foreign applies the consequences of stored objects that are of another cluster or identity.
func (d *Decision) foreign(cause Cause) {
	d.relist(cause)
	d.Serve, d.Rewrite, d.Newest = false, true, true
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
