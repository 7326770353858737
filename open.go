package warmwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/deletions"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/reflector"
	"github.com/warmwatch/warmwatch/workqueue"
)

// open opens the informer's parts, once. A space that cannot be read is emptied. The caller holds s.mu.
func (s *SharedIndexInformer) open() (*parts, error) {
	if p := s.parts.Load(); p != nil {
		return p, nil
	}
	p := &parts{place: s.place.Load(), db: s.shared.db}
	if p.fromMemory() { // A DB of its own is garbage together with the informer.
		var err error
		if p.db, err = persist.OpenMemory(persist.Options{Logger: &p.logger}); err != nil {
			return nil, err
		}
	}
	if err := s.shared.use(p.space); err != nil {
		return nil, err
	}
	s.store.adding.Lock()
	defer s.store.adding.Unlock()
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

// close makes the parts leave their DB. Only readers may use them after it.
func (p *parts) close() {
	p.work.Close()
	p.indexer.Release()
}

func (s *SharedIndexInformer) openParts(p *parts, indexers cache.Indexers) (err error) {
	p.indexer, err = indexer.New(indexer.Options{
		DB: p.db, Space: p.space, NewObject: s.newObject, Indexers: indexers,
		Objects: s.shared.objects, OnCorrupt: s.corrupt, AwaitRepair: s.awaitRepair, OnDecode: s.detector.AddObject, KeepVersion: true, Logger: &p.logger,
	})
	if err != nil {
		return err
	}
	p.indexer.Hide(true)
	p.queue, err = queue.NewLog(queue.Options{
		DB: p.db, Space: p.space, NewObject: s.newObject,
		OnCorrupt: s.corrupt, Logger: &p.logger, MaxBacklogBytes: s.shared.opts.MaxBacklogBytes,
	})
	if err != nil {
		return err
	}
	if p.indexer.Seq() == 0 && p.queue.Head() > 0 { // The store is empty, but deltas were written.
		s.corrupt(&persist.CorruptError{Bucket: persist.Bucket{Space: p.space, Name: "store"}, Err: errors.New("the store is missing")})
		if err := p.queue.StartOver(queue.CauseDamaged, func(string, int) bool { return true }); err != nil {
			return err
		}
	}
	p.sink = reflector.NewSink(reflector.SinkOptions{
		DB: p.db, Space: p.space, Indexer: p.indexer, Log: p.queue, Detector: s.detector, Logger: p.logger,
		Informer: observer{&s.progress, s}, Example: s.example, NewObject: s.newObject,
		MaxPendingBytes: s.shared.opts.MaxPendingBytes,
	})
	p.work, p.deletions = workqueue.NewStore(p.db, p.space, p.logger), deletions.New(p.db, p.space)
	return nil
}

// spaceBuckets returns the names of all buckets that an informer has in its space.
func spaceBuckets() []string {
	return slices.Concat(indexer.Buckets(), queue.Buckets(), reflector.Buckets(), workqueue.Buckets(), []string{deletions.BucketName})
}

func dropSpace(db *persist.DB, space string) error {
	return db.Update(func(b *persist.Batch) {
		for _, name := range spaceBuckets() {
			b.Drop(persist.Bucket{Space: space, Name: name})
		}
		reflector.DropBookmark(b, space)
		b.Delete(unusedBucket, space)
	})
}

// openReconcilers forgets the names of ForgetDurable, and opens the added reconcilers: they find the keys that the last
// process has left. After an error it can be called again. The caller holds s.mu.
func (s *SharedIndexInformer) openReconcilers(p *parts) error {
	for _, name := range s.forgotten {
		if err := p.forget(name); err != nil {
			return fmt.Errorf("warmwatch: forget %q: %w", name, err)
		}
	}
	s.forgotten = nil
	s.reconcilers = slices.DeleteFunc(s.reconcilers, (*Reconciler).hasEnded)
	for _, r := range s.reconcilers {
		if err := r.open(p); err != nil {
			return err
		}
	}
	return nil
}

// forget removes a name from the file: the position of its handler, and the keys and deletions of its reconciler.
func (p *parts) forget(name string) error {
	if err := p.queue.Forget(name); err != nil {
		return err
	}
	if err := p.work.Forget(name); err != nil {
		return err
	}
	return p.deletions.Forget(name)
}

// want returns the values that a checkpoint must match.
func (s *SharedIndexInformer) want() checkpoint.Want {
	id := s.place.Load().identity
	return checkpoint.Want{
		Identity:         id,
		SchemaVersion:    checkpoint.SchemaVersion(s.storedType()),
		NeverResume:      s.opts.NeverResume || isEvents(id),
		IndexVersion:     s.indexVersion(),
		TransformVersion: s.transformVersion(),
	}
}

// unknownTransform is the version of a function without a version. It does not change with the binary: otherwise each
// rollout would list everything.
const unknownTransform = "(not set)"

// transformVersion returns the version of the transform. It is empty if there is none. It differs if the transform
// returns another Go type.
func (s *SharedIndexInformer) transformVersion() string {
	if s.transform == nil {
		return ""
	}
	version := cmp.Or(s.opts.TransformVersion, unknownTransform)
	if s.opts.Transformed != nil {
		version += fmt.Sprintf(" %T", s.opts.Transformed)
	}
	return version
}

// identify finds out what the informer asks for, and so its place in the file. If it cannot, the informer works from
// memory. It returns false if the informer has ended meanwhile.
func (s *SharedIndexInformer) identify(ctx context.Context) bool {
	err := request.ErrNotSeen
	if s.shared.wrapped.Load() {
		var seen *request.Seen
		if seen, err = s.lookUntilSeen(ctx); err == nil {
			err = s.moveTo(ctx, seen)
		}
	}
	if ctx.Err() != nil || errors.Is(err, ErrClosed) {
		return false
	}
	if err != nil {
		s.progress.set(CodeFromMemory, workingFromMemory(err))
	}
	return true
}

// lookBackoff is client-go's for lists that fail, see NewReflectorWithOptions.
var lookBackoff = wait.Backoff{Duration: 800 * time.Millisecond, Cap: 30 * time.Second, Steps: 1 << 30, Factor: 2, Jitter: 1}

// lookUntilSeen returns the ListerWatcher's request. While the request cannot be made, it tries again, as a Reflector
// does.
func (s *SharedIndexInformer) lookUntilSeen(ctx context.Context) (*request.Seen, error) {
	for backoff := lookBackoff; ; {
		seen, err := look(ctx, s.lw)
		if err == nil || errors.Is(err, request.ErrNotSeen) {
			return seen, err
		}
		if ctx.Err() == nil {
			s.disconnected(fmt.Errorf("warmwatch: list, in order to see what the ListerWatcher asks for: %w", err))
			s.watchFailed(ctx, err)
		}
		if !pause(ctx, backoff.Step()) {
			return nil, ctx.Err()
		}
	}
}

// watchFailed calls the handler of watch errors for an error before there is a Reflector. The handler gets a Reflector
// that does not run.
func (s *SharedIndexInformer) watchFailed(ctx context.Context, err error) {
	p := s.place.Load()
	r := cache.NewReflectorWithOptions(s.lw, s.example, &s.store, cache.ReflectorOptions{Logger: &p.logger})
	s.watchErrorHandler(klog.NewContext(ctx, p.logger), r, err)
}

// moveTo gives the informer the place that its request asks for, once a predecessor has left it.
func (s *SharedIndexInformer) moveTo(ctx context.Context, seen *request.Seen) error {
	id := identityOf(s.example, seen.Asked)
	id.Path, id.Name = seen.Path(), s.opts.Name
	to := newPlace(id, seen.Asked, *s.shared.opts.Logger)
	if err := s.claimSpace(ctx, to); err != nil {
		return err
	}
	from := s.place.Swap(to)
	s.shared.release(from.space, s)
	return nil
}

const (
	// stopPatience is how long an informer waits for the end of another one of its identity: controller-runtime ends the
	// old informer and makes the new one at once.
	stopPatience = 10 * time.Second
	stopPoll     = 5 * time.Millisecond
)

// claimSpace claims the space of a place.
func (s *SharedIndexInformer) claimSpace(ctx context.Context, to *place) error {
	for begun := time.Now(); ; {
		err := s.shared.claim(to, s)
		if !errors.Is(err, ErrInUse) || time.Since(begun) >= stopPatience {
			return err
		}
		if !pause(ctx, stopPoll) {
			return ctx.Err()
		}
	}
}

// checkRequest compares a List or a watch with what the informer was made for. It refuses another request, because its
// objects would be served under the wrong identity. Exception: if only the first request has shown the identity,
// another request is made, as in client-go, and the data are not used again.
func (s *SharedIndexInformer) checkRequest(got request.Asked) (err error) {
	p := s.parts.Load()
	if p.fromMemory() {
		return nil
	}
	if got != p.asked && s.opts.learns() {
		s.asksForMore(p, got)
		return nil
	}
	if got != p.asked {
		err = fmt.Errorf("warmwatch: the ListerWatcher asks for %v, expected %v, as its informer was made for", got, p.asked)
	}
	s.progress.set(CodeOtherRequest, err)
	return err
}

// asksForMore makes the next process begin with a list. This process relists, too. Only the first call does something.
func (s *SharedIndexInformer) asksForMore(p *parts, got request.Asked) {
	err := fmt.Errorf("the ListerWatcher asks for %v, and for %v", p.asked, got)
	if !p.sink.Distrust() {
		return
	}
	s.progress.set(CodeFromMemory, workingFromMemory(err))
	s.forceRelist(reflector.Relisting{Cause: CauseOtherRequest, Reason: err.Error(), Rewrite: true})
}

// lookOf returns a function that returns the request from which the informer's own requests are made. It is nil if
// requests cannot be seen. The function fails if the ListerWatcher asks for something else than the informer was made
// for.
func (s *SharedIndexInformer) lookOf(p *parts) func(context.Context) (*request.Seen, error) {
	if p.fromMemory() || !s.shared.wrapped.Load() {
		return nil
	}
	return func(ctx context.Context) (*request.Seen, error) {
		seen, err := look(ctx, s.lw)
		if err != nil {
			return nil, err
		}
		return seen, s.checkRequest(seen.Asked)
	}
}

// askCluster asks which cluster the server belongs to, until it has answered. It returns how to relist if the stored
// objects are of another one. A refusal, or no answer, proves nothing.
func (s *SharedIndexInformer) askCluster(ctx context.Context) *reflector.Relisting {
	p := s.parts.Load()
	ask := s.shared.opts.ClusterID
	if ask == nil {
		ask = bySeen(s.lookOf(p), askClusterID)
	}
	if ask == nil || p.fromMemory() || p.sink.ClusterKnown() {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	id, err := ask(asking)
	if err == nil && id == "" {
		err = errors.New("it has no identity")
	}
	var decision checkpoint.Decision
	if err == nil {
		decision, err = p.sink.SetCluster(id)
	}
	switch {
	case errors.Is(err, request.ErrNotSeen), err != nil && s.shared.opts.ClusterID != nil:
		p.logger.Error(err, "It is not known yet which cluster the API server belongs to")
	case err != nil:
		p.logger.V(2).Info("It is not known yet which cluster the API server belongs to", "err", err)
	case decision.Cause == CauseOtherCluster:
		return relistingOf(decision)
	}
	return nil
}
