package warmwatch

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/persist"
)

// A Code says what is wrong in a [Problem], or what happened in an [Event]. Its text is the name of the constant
// without the word Code.
type Code string

const (
	// CodeLocked means: another process holds the file. This process works from memory until it ends.
	CodeLocked = Code(persist.CodeLocked)
	// CodeNoFile means: the file can be neither opened nor created. The process works from memory until it ends.
	CodeNoFile = Code(persist.CodeNoFile)
	// CodeFileDamaged means: the file was found damaged in use. It is only read, and the next Open sets it aside.
	CodeFileDamaged = Code(persist.CodeFileDamaged)
	// CodeNotWritten means: the last commit has failed, as on a full disk. Changes wait in memory, and commits are
	// tried again.
	CodeNotWritten = Code(persist.CodeNotWritten)
	// CodeDiskHangs means: a commit has been under way for more than 10 s. It is in Status and Metrics, and no Event.
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
	// CodeRefused means: an object could not be stored. The transform failed on it, it is of another type, it has no
	// key or too long a key, or it cannot be encoded.
	CodeRefused Code = "Refused"
	// CodeServerFails means: the last List or watch has failed.
	CodeServerFails Code = "ServerFails"
)

// The codes of events that are no problems.
const (
	// CodeOpened means: Open has returned a Cache, with a file or without one.
	CodeOpened Code = "Opened"
	// CodeSetAside means: Open has set a bad file aside and begun a new one.
	CodeSetAside Code = "SetAside"
	// CodeServed means: an informer serves its cache, from disk or from the server.
	CodeServed Code = "Served"
	// CodeResumed means: the watch goes on at the checkpoint.
	CodeResumed Code = "Resumed"
	// CodeCaughtUp means: the cache has caught up with the server.
	CodeCaughtUp Code = "CaughtUp"
	// CodeRelisted means: the cache was compared with a list.
	CodeRelisted Code = "Relisted"
	// CodeRecovered means: a problem has ended. The event's Cause is the code of the problem.
	CodeRecovered Code = "Recovered"
	// CodeStartedOver means: a handler starts over, or a durable one is new. The event's Cause is one of those in
	// HandlerStatus.Restarts.
	CodeStartedOver Code = "StartedOver"
	// CodeSkipped means: a durable handler has panicked on a change in Options.MaxPanics processes, and the change was
	// skipped.
	CodeSkipped Code = "Skipped"
	// CodeDropped means: the data of an informer that nobody has opened for Options.DropUnusedAfter were removed.
	CodeDropped Code = "Dropped"
	// CodeClosed means: the Cache is being closed.
	CodeClosed Code = "Closed"
)

// A Cause says why an informer resumes its watch, or lists. Its text is the name of the constant without the word
// Cause.
type Cause = checkpoint.Cause

const (
	// CauseResumed means: the checkpoint is complete and matches, so the watch goes on there.
	CauseResumed = checkpoint.CauseResumed
	// CauseFirstStart means: nothing is stored.
	CauseFirstStart = checkpoint.CauseFirstStart
	// CauseOtherCluster means: the stored objects are of another cluster.
	CauseOtherCluster = checkpoint.CauseOtherCluster
	// CauseOtherIdentity means: the stored objects have another identity, or none: the ListerWatcher asked for more
	// than one thing.
	CauseOtherIdentity = checkpoint.CauseOtherIdentity
	// CauseTransformVersion means: the transform of the stored objects had another version.
	CauseTransformVersion = checkpoint.CauseTransformVersion
	// CauseSchemaVersion means: the Go type of the stored objects had other fields.
	CauseSchemaVersion = checkpoint.CauseSchemaVersion
	// CauseIncomplete means: the last list was not applied to its end, an object was refused, or `warmwatch relist` was
	// run.
	CauseIncomplete = checkpoint.CauseIncomplete
	// CauseDamaged means: the stored data cannot be read, are not complete, or their indices cannot be rebuilt.
	CauseDamaged = checkpoint.CauseDamaged
	// CauseNoVersion means: no resourceVersion is known at which a watch can begin.
	CauseNoVersion = checkpoint.CauseNoVersion
	// CauseNeverResume means: the server keeps no history of this resource.
	CauseNeverResume = checkpoint.CauseNeverResume
	// CauseExpired means: the server no longer has the history since the checkpoint.
	CauseExpired = checkpoint.CauseExpired
	// CauseWatchFailed means: the server has refused the watch, or failed it.
	CauseWatchFailed = checkpoint.CauseWatchFailed
	// CauseServerBehind means: the server is at a version below the checkpoint.
	CauseServerBehind = checkpoint.CauseServerBehind
	// CauseContradiction means: the server's answer to the question has another object, or another number of objects,
	// than the store at that version.
	CauseContradiction = checkpoint.CauseContradiction
	// CauseOtherRequest means: the ListerWatcher asks for more than one thing.
	CauseOtherRequest = checkpoint.CauseOtherRequest
	// CauseFullRelist means: FullRelistEvery has passed, or Relist was called.
	CauseFullRelist = checkpoint.CauseFullRelist
)

// informerCodes are the codes of an informer's problems, in the order of InformerStatus.Problems. InformerStatus.Err
// has the first one that is not CodeServerFails.
var informerCodes = []Code{CodeNotRead, CodeOtherRequest, CodeFromMemory, CodeUnreadable, CodeRefused, CodeServerFails}

// A Problem is something that is wrong now.
type Problem struct {
	Code    Code
	Message string
	// Since is when it began; zero if unknown.
	Since time.Time `json:",omitzero"`
}

// problemOf returns the problem of a file, and its error. Both are nil if all is well.
func problemOf(db *persist.DB) ([]Problem, error) {
	code, since, err := db.Problem()
	if err == nil {
		return nil, nil
	}
	return []Problem{{Code(code), err.Error(), since}}, err
}

func workingFromMemory(err error) error { return fmt.Errorf("warmwatch: working from memory: %w", err) }

// An Event is an entry of the timeline: something that happened in the life of a Cache. When a problem begins, the
// event has the problem's code. When it ends, the event has [CodeRecovered].
type Event struct {
	Time time.Time
	Code Code
	// Informer is the informer's name in Status; empty for an event of the file. Handler is the name of a handler or
	// reconciler.
	Informer string `json:",omitempty"`
	Handler  string `json:",omitempty"`
	// Cause of a start or relist ([Cause]), of a handler that starts over, or the code of a problem that has ended.
	Cause string `json:",omitempty"`
	// Message is for people: an error, a reason, a path, a key.
	Message string `json:",omitempty"`
	// Numbers of the event, such as objects, added, updated, deleted, receivedBytes, seconds.
	Numbers map[string]float64 `json:",omitempty"`
	// Times is how often the same has happened within a minute from Time on; zero means once. Message and Numbers are
	// of the first time.
	Times int `json:",omitempty"`
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// what has the text of each code for the log: first the codes of events, then those of problems.
var what = map[Code]string{
	CodeOpened: "Opened the cache", CodeSetAside: "Set the cache file aside and began a new one", CodeServed: "Serving the cache",
	CodeResumed: "Resumed the watch", CodeCaughtUp: "Caught up with the server", CodeRelisted: "Compared the cache with a list",
	CodeRecovered: "A problem has ended", CodeStartedOver: "A handler starts over", CodeSkipped: "Skipped a change",
	CodeDropped: "Removed the data of an informer that nobody uses", CodeClosed: "Closing the cache",

	CodeLocked: "Working from memory: another process holds the cache file", CodeNoFile: "Working from memory: the cache file cannot be used",
	CodeFileDamaged: "The cache file is damaged. From now on it is only read. The next start sets it aside",
	CodeNotWritten:  "Could not write to the cache file. Changes stay in memory. Durable handlers and reconcilers wait for 30 s, then they go on from memory",
	CodeNotRead:     "Could not read the informer's data, trying again", CodeOtherRequest: "The ListerWatcher asks for something else than InformerOptions say: not sending its requests",
	CodeFromMemory: "The informer is not persisted: the next process begins with a list", CodeUnreadable: "Could not read everything that is stored: listing all objects and writing them anew",
	CodeRefused: "Left an object out of the cache", CodeServerFails: "A List or a watch failed",
}

// ordinary events are only in a verbose log. A start and a relist have one line in any case: Served and Relisted.
var ordinary = map[Code]bool{CodeResumed: true, CodeCaughtUp: true, CodeClosed: true, CodeRefused: true}

// log writes one line for an event.
func (e *Event) log(logger klog.Logger, err error) {
	values := []any{"code", e.Code}
	for _, v := range [][2]string{{"handler", e.Handler}, {"cause", e.Cause}, {"message", e.Message}} {
		if v[1] != "" {
			values = append(values, v[0], v[1])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Numbers)) {
		values = append(values, name, e.Numbers[name])
	}
	switch {
	case ordinary[e.Code]:
		logger.V(2).Info(what[e.Code], append(values, "err", err)...)
	case err != nil:
		logger.Error(err, what[e.Code], values...)
	default:
		logger.Info(what[e.Code], values...)
	}
}

// timelineLength is how many events a timeline has.
const timelineLength = 200

// repeatedWithin is how long after an event an equal one counts as its repetition.
const repeatedWithin = time.Minute

var timelineBucket = persist.Bucket{Space: "timeline", Name: "events"} // By the number of the event, 8 bytes.

// A timeline has the last events of a Cache, in memory and in the file.
type timeline struct {
	db *persist.DB

	mu     sync.Mutex
	events []Event // Oldest first. Their numbers have no gap.
	last   uint64  // The number of the last event.
	before uint64  // The number of the last event of earlier processes.
}

func numberKey(number uint64) string { return string(binary.BigEndian.AppendUint64(nil, number)) }

// load reads the events of earlier processes.
func (t *timeline) load() error {
	defer func() { t.before = t.last }()
	return t.db.Read(timelineBucket.Space, func(s *persist.Snapshot) error {
		return s.Scan(timelineBucket.Name, "", func(it *persist.Item) (bool, error) {
			e, _ := persist.ReadJSON[Event](it) // A damaged one is empty.
			t.events, t.last = append(t.events, e), binary.BigEndian.Uint64([]byte(it.Key))
			return true, nil
		})
	})
}

// record adds an event, and logs it unless it is a repetition. In the timeline err becomes the event's Message.
func (t *timeline) record(logger klog.Logger, e Event, err error) {
	e.Time = time.Now()
	added := e
	if err != nil {
		added.Message = err.Error()
	}
	if t.add(added) {
		e.log(logger, err)
	}
}

// add reports whether the event is new: not a repetition. After the end of the Cache the file does not get it.
func (t *timeline) add(e Event) (isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ours := max(0, len(t.events)-int(t.last-t.before))
	i := slices.IndexFunc(t.events[ours:], func(o Event) bool {
		return o.Code == e.Code && o.Informer == e.Informer && o.Handler == e.Handler && o.Cause == e.Cause && e.Time.Sub(o.Time) < repeatedWithin
	})
	if isNew = i < 0; isNew {
		i, t.events, t.last = len(t.events), append(t.events, e), t.last+1
	} else {
		i += ours
		t.events[i].Times = max(t.events[i].Times, 1) + 1
	}
	_ = t.db.Update(func(b *persist.Batch) {
		b.Put(timelineBucket, numberKey(t.last-uint64(len(t.events)-1-i)), persist.JSON(t.events[i]))
		b.Delete(timelineBucket, numberKey(t.last-timelineLength))
		if !isNew { // A repetition needs no commit of its own: a bad link has many.
			b.Idle()
		}
	})
	t.events = t.events[max(0, len(t.events)-timelineLength):]
	return isNew
}

// all returns the events, oldest first.
func (t *timeline) all() []Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.events)
}
