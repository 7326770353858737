package warmwatch

import (
	"fmt"
	"time"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/persist"
)

// A Code says what kind of trouble a [Problem] is. As a string it is spelled as its constant, without the word Code.
type Code string

const (
	// CodeLocked means: another process holds the file. This one works from memory until it ends.
	CodeLocked = Code(persist.CodeLocked)
	// CodeNoFile means: the file can be neither opened nor created. The process works from memory until it ends.
	CodeNoFile = Code(persist.CodeNoFile)
	// CodeFileDamaged means: the file was found damaged in use. It is only read, and the next Open sets it aside.
	CodeFileDamaged = Code(persist.CodeFileDamaged)
	// CodeNotWritten means: the last commit has failed, as on a full disk. Changes wait in memory, and commits are tried
	// again.
	CodeNotWritten = Code(persist.CodeNotWritten)
	// CodeDiskHangs means: a commit has been under way for more than 10 s.
	CodeDiskHangs = Code(persist.CodeDiskHangs)

	// CodeNotRead means: a started informer cannot read its data in the file. It tries again each second.
	CodeNotRead Code = "NotRead"
	// CodeOtherRequest means: the ListerWatcher asks for something else than the informer was made for.
	CodeOtherRequest Code = "OtherRequest"
	// CodeFromMemory means: the informer works from memory, or the next process does not use its data, see
	// [Cache.NewInformer].
	CodeFromMemory Code = "FromMemory"
	// CodeUnreadable means: something stored could not be read. A relist that writes everything anew is due.
	CodeUnreadable Code = "Unreadable"
	// CodeRefused means: an object could not be stored: the transform has failed on it, it has no key, it is of
	// another type, or it cannot be encoded.
	CodeRefused Code = "Refused"
	// CodeServerFails means: the last List or watch has failed.
	CodeServerFails Code = "ServerFails"
)

// A Cause says why an informer resumes its watch, or lists. As a string it is spelled as its constant, without the word
// Cause.
type Cause = checkpoint.Cause

const (
	// CauseResumed means: the checkpoint is complete and matches, so the watch goes on there.
	CauseResumed = checkpoint.CauseResumed
	// CauseFirstStart means: nothing is stored.
	CauseFirstStart = checkpoint.CauseFirstStart
	// CauseOtherCluster means: the stored objects are of another cluster.
	CauseOtherCluster = checkpoint.CauseOtherCluster
	// CauseOtherIdentity means: the stored objects are of another resource, namespace, selector, form or name.
	CauseOtherIdentity = checkpoint.CauseOtherIdentity
	// CauseTransformVersion means: the transform that has stored the objects had another version.
	CauseTransformVersion = checkpoint.CauseTransformVersion
	// CauseSchemaVersion means: the Go type that has stored the objects had other fields.
	CauseSchemaVersion = checkpoint.CauseSchemaVersion
	// CauseIncomplete means: the last list was not applied to its end.
	CauseIncomplete = checkpoint.CauseIncomplete
	// CauseDamaged means: the stored data cannot be read, are not complete, or their indices cannot be rebuilt.
	CauseDamaged = checkpoint.CauseDamaged
	// CauseNoVersion means: no resourceVersion is known at which a watch can begin.
	CauseNoVersion = checkpoint.CauseNoVersion
	// CauseNeverResume means: the server keeps no history of this resource.
	CauseNeverResume = checkpoint.CauseNeverResume
	// CauseExpired means: the server no longer has the history since the checkpoint.
	CauseExpired = checkpoint.CauseExpired
	// CauseWatchFailed means: the watch has failed in the server.
	CauseWatchFailed = checkpoint.CauseWatchFailed
	// CauseServerBehind means: the server is at a version below the checkpoint.
	CauseServerBehind = checkpoint.CauseServerBehind
	// CauseContradiction means: the server's answer to the question has another object, or another number of objects,
	// than the store at that version.
	CauseContradiction = checkpoint.CauseContradiction
	// CauseOtherRequest means: the ListerWatcher asks for more than one thing.
	CauseOtherRequest = checkpoint.CauseOtherRequest
	// CauseFullRelist means: contents are to be compared, because FullRelistEvery has passed, or Relist was called.
	CauseFullRelist = checkpoint.CauseFullRelist
)

// informerCodes are those of an informer, in the order of InformerStatus.Problems. InformerStatus.Err has the first
// one, unless that is CodeServerFails.
var informerCodes = []Code{CodeNotRead, CodeOtherRequest, CodeFromMemory, CodeUnreadable, CodeRefused, CodeServerFails}

// A Problem is something that is wrong now.
type Problem struct {
	Code    Code
	Message string
	// Since is when it began; zero if unknown.
	Since time.Time `json:",omitzero"`
}

// problemOf returns what is wrong with a file, nothing if all is well.
func problemOf(db *persist.DB) ([]Problem, error) {
	code, since, err := db.Problem()
	if err == nil {
		return nil, nil
	}
	return []Problem{{Code(code), err.Error(), since}}, err
}

func workingFromMemory(err error) error { return fmt.Errorf("warmwatch: working from memory: %w", err) }
