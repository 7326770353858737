package warmwatch

import (
	"errors"
	"slices"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/reflector"
	"github.com/warmwatch/warmwatch/workqueue"
)

// A place is where an informer has its data, and what for. It does not change. An informer of NewInformer gets another
// one when its first request was seen.
type place struct {
	identity checkpoint.Identity // Or unseenIdentity.
	asked    request.Asked       // What its requests must ask for; zero if nobody knows what the informer asks for.
	space    string
	logger   klog.Logger
}

// newPlace returns the place of an identity in the file, or, if nobody knows what the informer asks for, in memory.
func (c *Cache) newPlace(id checkpoint.Identity, asked request.Asked) *place {
	p := &place{identity: id, asked: asked, space: id.Space()}
	if p.fromMemory() {
		p.space = id.Name
	}
	p.logger = klog.LoggerWithValues(*c.opts.Logger, "informer", p.name())
	return p
}

// fromMemory reports whether the informer has no space in the file.
func (p *place) fromMemory() bool { return p.asked == request.Asked{} }

// name of the informer in Status and in the log.
func (p *place) name() string {
	if p.fromMemory() {
		return p.space
	}
	return p.identity.String()
}

// parts are what an informer has when it runs. They do not change.
type parts struct {
	*place
	db           *persist.DB
	indexer      *indexer.Indexer
	queue        *queue.Log
	sink         *reflector.Sink
	work         *workqueue.Store // Of the reconcilers.
	ignoreDamage func()           // Ends that the DB calls fileDamaged.
}

// open opens what the informer has in its place, once. A space that cannot be read is emptied. The caller holds s.mu.
func (s *SharedIndexInformer) open() (*parts, error) {
	if p := s.parts.Load(); p != nil {
		return p, nil
	}
	p := &parts{place: s.place.Load(), db: s.cache.db}
	if p.fromMemory() { // Of its own, so that it is garbage together with the informer.
		var err error
		if p.db, err = persist.OpenMemory(persist.Options{Logger: &p.logger}); err != nil {
			return nil, err
		}
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	indexers := s.store.GetIndexers()
	err := s.openParts(p, indexers)
	if errors.Is(err, persist.ErrCorrupt) {
		p.logger.Error(err, "Could not read the cache, emptying it")
		if err := dropSpace(p.db, p.space); err != nil {
			return nil, err
		}
		err = s.openParts(p, indexers)
	}
	if err != nil {
		return nil, err
	}
	s.store.current.Store(&contents{p.indexer})
	s.parts.Store(p)
	return p, nil
}

// close makes the parts leave their DB. Nothing may use them any more, but readers.
func (p *parts) close() {
	p.work.Close()
	p.ignoreDamage()
	p.indexer.Release()
}

func (s *SharedIndexInformer) openParts(p *parts, indexers cache.Indexers) (err error) {
	p.indexer, err = indexer.New(indexer.Options{
		DB: p.db, Space: p.space, NewObject: s.newObject, Indexers: indexers,
		Objects: s.cache.objects, OnCorrupt: s.corrupt, AwaitRepair: s.awaitRepair, OnDecode: s.detector.AddObject, Logger: &p.logger,
	})
	if err != nil {
		return err
	}
	p.indexer.Hide(true)
	p.queue, err = queue.NewLog(queue.Options{
		DB: p.db, Space: p.space, NewObject: s.newObject,
		OnCorrupt: s.corrupt, Logger: &p.logger, MaxBacklogBytes: s.cache.opts.MaxBacklogBytes,
	})
	if err != nil {
		return err
	}
	if p.indexer.Seq() == 0 && p.queue.Head() > 0 { // The store is empty, but deltas were written.
		s.corrupt(&persist.CorruptError{Bucket: persist.Bucket{Space: p.space, Name: "store"}, Err: errors.New("the store is missing")})
		if err := p.queue.StartOver(func(string, int) bool { return true }); err != nil {
			return err
		}
	}
	p.sink = reflector.NewSink(reflector.SinkOptions{
		DB: p.db, Space: p.space, Indexer: p.indexer, Log: p.queue, Detector: s.detector, Logger: p.logger,
		Informer: observer{&s.progress, s}, Example: s.example, NewObject: s.newObject,
		MaxPendingBytes: s.cache.opts.MaxPendingBytes,
	})
	p.work = workqueue.NewStore(p.db, p.space, p.logger)
	p.ignoreDamage = p.db.OnDamage(s.fileDamaged)
	return nil
}

// spaceBuckets returns the names of all buckets that an informer has in its space.
func spaceBuckets() []string {
	return slices.Concat(indexer.Buckets(), queue.Buckets(), reflector.Buckets(), workqueue.Buckets(), []string{deletedBucket})
}

func dropSpace(db *persist.DB, space string) error {
	_, err := db.Update(func(b *persist.Batch) {
		for _, name := range spaceBuckets() {
			b.Drop(persist.Bucket{Space: space, Name: name})
		}
	})
	return err
}

// corrupt is called when a record cannot be read. It schedules a relist that writes
// every record anew.
func (s *SharedIndexInformer) corrupt(err error) { s.damaged(err, false) }

// fileDamaged is called when a part of the file cannot be read any more. It does the same.
func (s *SharedIndexInformer) fileDamaged(err error) { s.damaged(err, true) }

func (s *SharedIndexInformer) damaged(err error, wholeFile bool) {
	p := &s.progress
	p.mu.Lock()
	isNews := p.setLocked(CodeUnreadable, err)
	// The relist that is due, or running, rewrites a single bad record as well.
	force := wholeFile || !p.relistForced && !p.rewriting
	p.relistForced = p.relistForced || force
	p.mu.Unlock()
	if isNews {
		s.place.Load().logger.Error(err, "Could not read all that is stored: all objects are to be listed and written anew")
	}
	if force {
		s.forceRelist(relistingDamaged(err))
	}
}

// relistingDamaged writes all anew, because something that is stored could not be read.
func relistingDamaged(err error) reflector.Relisting {
	return reflector.Relisting{Cause: CauseDamaged, Reason: err.Error(), Rewrite: true}
}

const (
	// recentAnswer is how old the last word of a server that is heard may be, where no watch is open.
	recentAnswer = 10 * time.Second
	repairPoll   = 20 * time.Millisecond
)

// awaitRepair waits until a relist has repaired what could not be read, as long as the server is heard, and at most for limit
// if that is positive. It reports whether that is done.
func (s *SharedIndexInformer) awaitRepair(limit time.Duration) bool {
	for begin := time.Now(); limit <= 0 || time.Since(begin) < limit; time.Sleep(repairPoll) {
		switch repaired, heard := s.progress.repair(); {
		case repaired:
			return true
		case !heard:
			return false
		}
	}
	return false
}

// repair reports whether all that is stored can be read, and whether the server is heard, so that it soon can.
func (p *progress) repair() (repaired, heard bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	recent := time.Since(p.lastContact) < recentAnswer || time.Since(p.liveUntil) < recentAnswer
	return p.troubles[CodeUnreadable].err == nil, p.phase == PhaseLive || recent && p.phase != PhaseStopped
}
