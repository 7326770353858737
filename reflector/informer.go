package reflector

import (
	"time"

	"k8s.io/client-go/tools/cache"
)

// Informer has the methods of their informer that the Resumer and the Sink call. They do not block. They may be called
// while the Sink's lock is held, so they do not call the Sink.
type Informer interface {
	// Resuming: the watch goes on at resourceVersion.
	Resuming(resourceVersion string)
	// Relisting: the store is compared with a list now.
	Relisting(how Relisting)
	// Live: a watch is open.
	Live()
	// CaughtUp: a resumed watch has brought all that the server had when it was asked.
	CaughtUp()
	// Disconnected: a List or a watch has failed, or the watch has ended (nil).
	Disconnected(err error)
	// Contact: the server has sent something.
	Contact()

	// RelistBegun: a relist repairs the damage that was found so far. It may write all records anew.
	RelistBegun(rewriting bool)
	// RelistEnded: the relist has ended, complete or not. refused is why an object was left out, or nil. whole says
	// that no damage was found since the relist began.
	RelistEnded(complete bool, refused error) (whole bool)
	// Relisted: the store equals the list.
	Relisted(Relisted)
	// Refused: the object of an event could not be stored.
	Refused(err error)
	// Resync calls the handlers that are due for all objects again.
	Resync()
	HasSyncedChecker() cache.DoneChecker
}

// Relisted says what a relist has done.
type Relisted struct {
	Full    bool // All contents were compared.
	Objects int  // In the store now.
	// The changes that it found. The first list into an empty store adds all objects.
	Added, Updated, Deleted int
	Took                    time.Duration // From the first object on.
}
