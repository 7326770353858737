package warmwatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/reflector"
)

// Run implements [cache.SharedInformer].
func (s *SharedIndexInformer) Run(stopCh <-chan struct{}) {
	s.RunWithContext(wait.ContextForChannel(stopCh))
}

// RunWithContext implements [cache.SharedInformer]: it runs the informer until ctx is done, and returns when everything
// that it started has ended, callbacks too, except a List that hangs. Pending deltas of durable handlers are delivered
// after the next start. An informer runs once.
func (s *SharedIndexInformer) RunWithContext(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !s.enter(ctx, cancel) {
		return
	}
	var wg wait.Group
	detectorStop := make(chan struct{})
	wg.StartWithChannel(detectorStop, s.detector.Run)
	wg.StartWithContext(ctx, s.logHanging)
	defer func() {
		s.end()
		cancel()
		close(detectorStop)
		wg.Wait()
	}()
	if s.opts.learns() && !s.identify(ctx) {
		return
	}
	if !s.untilRead(ctx, func() error { return s.begin(ctx) }) {
		return
	}
	s.controller.RunWithContext(klog.NewContext(ctx, s.place.Load().logger))
}

// readRetryDelay is the pause after the file could not be read.
const readRetryDelay = time.Second

// untilRead takes a step of the start that reads the file until the file can be read. It reports false
// if the informer has ended meanwhile.
func (s *SharedIndexInformer) untilRead(ctx context.Context, step func() error) bool {
	for failed := false; ; failed = true {
		err := step()
		s.progress.set(CodeNotRead, err)
		if err == nil || errors.Is(err, ErrClosed) {
			return err == nil
		}
		if !failed {
			s.place.Load().logger.Error(err, "Could not begin to run, trying again")
		}
		if !pause(ctx, readRetryDelay) {
			return false
		}
	}
}

// enter reports whether the informer may run. It runs once.
func (s *SharedIndexInformer) enter(ctx context.Context, cancel context.CancelFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx != nil {
		klog.FromContext(ctx).Info("Warning: the sharedIndexInformer has started, run more than once is not allowed")
		return false
	}
	p, closed := s.place.Load(), s.stopped
	if !closed && s.opts.learns() {
		_, err := s.cache.claim(p, s)
		closed = err != nil
	}
	if closed {
		klog.FromContext(ctx).Info("The informer does not run, because its Cache was closed", "informer", p.name())
		return false
	}
	s.ctx, s.cancel = ctx, cancel
	return true
}

// isEnding reports whether the run has begun, and is about to end.
func (s *SharedIndexInformer) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctx != nil && s.ctx.Err() != nil
}

// begin decides how to start. After an error it can be called again; [ErrClosed] says that the Cache was
// closed.
func (s *SharedIndexInformer) begin(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrClosed
	}
	p, err := s.open()
	if err != nil {
		return err
	}
	if err := s.openReconcilers(p); err != nil {
		return err
	}
	want := s.want("")
	decision := p.sink.Load(want, s.transform)
	resyncCheckPeriod, err := s.processor.Start(p.queue, p.indexer, p.logger)
	if err != nil {
		return err
	}
	if !decision.Serve && p.indexer.Len() > 0 {
		p.logger.Info("What is stored is not served before the server has answered", "action", decision.Action, "cause", decision.Cause, "reason", decision.Reason)
	}
	resumer := reflector.NewResumer(reflector.Options{
		ListerWatcher: s.checked(p.identity),
		Schema:        bySeen(s, s.cache.schemas.of),
		Sink:          p.sink,
		NeverResume:   want.NeverResume,
		Cluster:       s.askCluster,
		Ask:           bySeen(s, askForOne),
		Spread:        s.cache.opts.RelistSpread,
	})
	if how := relistingOf(decision); how != nil {
		resumer.ForceRelist(*how)
	}
	s.resumer.Store(resumer)
	for _, how := range s.progress.dueRelists() {
		resumer.ForceRelist(how)
	}
	s.controller = cache.New(&cache.Config{
		Queue:                        p.sink,
		ListerWatcher:                resumer,
		ObjectType:                   s.example,
		FullResyncPeriod:             resyncCheckPeriod,
		ShouldResync:                 s.processor.ShouldResync,
		WatchErrorHandlerWithContext: s.watchErrorHandler,
	})
	s.progress.started(decision, p.sink.Checkpoint().VouchedAt)
	if decision.Serve {
		s.serveStored(ctx, decision.Action)
	}
	for _, r := range s.reconcilers {
		s.running.Go(func() { r.run(ctx) })
	}
	s.running.Go(func() { s.relistRegularly(ctx, p.sink) })
	return nil
}

// serveStored makes the stored objects readable before the server is heard. See Options.ServeStaleAfter.
func (s *SharedIndexInformer) serveStored(ctx context.Context, action checkpoint.Action) {
	s.serve(action)
	switch after := s.cache.opts.ServeStaleAfter; {
	case after < 0:
		s.synced.set()
	case after > 0:
		s.running.Go(func() { s.serveStale(ctx, after) })
	}
}

// serveStale makes HasSynced true once the server has not been heard for a while.
func (s *SharedIndexInformer) serveStale(ctx context.Context, after time.Duration) {
	begun := time.Now()
	for {
		heard := begun
		if contact := s.progress.heardAt(); contact.After(begun) {
			heard = contact
		}
		silent := time.Since(heard)
		if silent >= after {
			if s.synced.set() {
				s.place.Load().logger.Info("The server was not heard, HasSynced is true with what the disk has", "silent", silent.Round(time.Second))
			}
			return
		}
		select {
		case <-time.After(after - silent):
		case <-s.synced.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// relistingOf returns how to relist, nil if the watch is resumed.
func relistingOf(d checkpoint.Decision) *reflector.Relisting {
	if d.Action == checkpoint.ActionResume {
		return nil
	}
	return &reflector.Relisting{Cause: d.Cause, Reason: d.Reason, Rewrite: d.Rewrite, Newest: d.Action == checkpoint.ActionDiscard}
}

// end waits for everything that the run has started, except a List that hangs, whose
// objects are refused. The order matters: nothing may be written after the last
// acknowledgements of the listeners.
func (s *SharedIndexInformer) end() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.progress.setPhase(PhaseStopped)
	p := s.parts.Load()
	if p != nil {
		p.sink.Stop()
	}
	if r := s.resumer.Load(); r != nil {
		r.Stop()
	}
	s.processor.Stop()
	patience := time.AfterFunc(endPatience, s.logRunning)
	s.running.Wait()
	s.processor.Wait()
	patience.Stop()
	s.mu.Lock()
	for _, r := range s.reconcilers { // Those that never ran, because begin has failed behind openReconcilers.
		r.close()
	}
	s.mu.Unlock()
	if p != nil {
		p.queue.Stop()
		p.close()
	}
	s.cache.release(s.place.Load().space, s)
	close(s.ended)
}

// endPatience is how long end waits for handlers and reconciles before it logs that it waits.
const endPatience = 10 * time.Second

func (s *SharedIndexInformer) logRunning() {
	for _, u := range s.unreturned() {
		u.logger(s).Info("Still waiting for a handler or a reconcile to return, in order to stop")
	}
}

// detach makes the informer stop using the file, because the Cache is closing.
// What handlers acknowledge from now on may not be stored.
func (s *SharedIndexInformer) detach() {
	s.mu.Lock()
	cancel := s.cancel
	s.stopped = true
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	// detach does not wait for the Reflector, because a ListerWatcher may hang.
	// The sink refuses what still comes.
	if p := s.parts.Load(); p != nil {
		p.sink.Stop()
	}
	s.processor.Stop()
}

// hasEnded waits until the run has ended, if it has begun, and reports false if ctx is done before.
func (s *SharedIndexInformer) hasEnded(ctx context.Context) bool {
	s.mu.Lock()
	started := s.ctx != nil
	s.mu.Unlock()
	if started {
		select {
		case <-s.ended:
		case <-ctx.Done():
		}
	}
	return !started || isClosed(s.ended)
}

// caughtUp is called when the resumed watch has caught up with the server, and after each relist.
func (s *SharedIndexInformer) caughtUp() {
	s.caught.set()
	s.synced.set()
}

// serve makes the store readable, and logs once what the informer begins with.
func (s *SharedIndexInformer) serve(action checkpoint.Action) {
	p := s.parts.Load()
	p.indexer.Hide(false)
	if s.served.set() {
		p.logger.Info("Serving the cache", append([]any{"action", action}, s.progress.start(p.indexer.Len())...)...)
	}
}

// A signal is set once, and stays so.
type signal struct {
	once sync.Once
	done chan struct{} // Closed when it is set.
}

func newSignal() *signal { return &signal{done: make(chan struct{})} }

// set reports whether this call has set it.
func (s *signal) set() (first bool) {
	s.once.Do(func() {
		close(s.done)
		first = true
	})
	return first
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// An askedRelist is a relist by content that somebody waits for.
type askedRelist struct {
	begun bool          // A relist has begun since it was asked for.
	done  chan struct{} // Closed when one is applied.
}

// relistingAsked is the newest state, because a watch cache may have lost events, too.
var relistingAsked = reflector.Relisting{Cause: CauseFullRelist, Newest: true}

var errEnded = errors.New("warmwatch: the informer has ended")

// Relist lists all objects, compares their contents with the cache, applies the differences, and notifies handlers of
// them. It repairs a cache that does not equal the server. It returns nil when this is done, and an error if ctx is
// done or the informer ends before. While the server is away it waits. Concurrent calls share one list. It may be
// called before the informer runs.
func (s *SharedIndexInformer) Relist(ctx context.Context) error {
	if s.IsStopped() {
		return errEnded
	}
	asked, first := s.progress.askRelist()
	if first {
		s.forceRelist(relistingAsked)
	}
	select {
	case <-asked.done:
		return nil
	case <-s.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// forceRelist has the Resumer relist. Before there is one, begin will find what is due, see dueRelists.
func (s *SharedIndexInformer) forceRelist(how reflector.Relisting) {
	if r := s.resumer.Load(); r != nil {
		r.ForceRelist(how)
	}
}

// Relist is [SharedIndexInformer.Relist] of all informers that run.
func (c *Cache) Relist(ctx context.Context) error {
	informers := c.running()
	errs := make([]error, len(informers))
	var wg sync.WaitGroup
	for i, s := range informers {
		wg.Go(func() { errs[i] = s.Relist(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// askRelist returns the relist that is asked for, and whether this call is the first to do so.
func (p *progress) askRelist() (asked *askedRelist, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first = p.asked == nil; first {
		p.asked = &askedRelist{done: make(chan struct{})}
	}
	return p.asked, first
}

// dueRelists returns how to relist for what was found and asked for before there was a Resumer.
func (p *progress) dueRelists() (due []reflector.Relisting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, damaged := p.troubles[CodeUnreadable]; damaged {
		due = append(due, relistingDamaged(t.err))
	}
	if p.asked != nil {
		due = append(due, relistingAsked)
	}
	return due
}

// quietTimeOfRelist is how long nothing comes before a regular relist.
const quietTimeOfRelist = time.Second

// isQuiet reports whether a watch is open that has brought nothing for a while.
func (p *progress) isQuiet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase == PhaseLive && time.Since(p.lastContact) >= quietTimeOfRelist
}

// relistRegularly asks for a relist each Options.FullRelistEvery.
func (s *SharedIndexInformer) relistRegularly(ctx context.Context, k *reflector.Sink) {
	every := min(s.cache.opts.FullRelistEvery, 1<<60) // 36 years, so that its parts and multiples are times.
	for every > 0 {
		last, after := k.Checkpoint().LastFullList, every*4/5+rand.N(every*2/5+1)
		due := time.Until(last.Add(after))
		if !pause(ctx, min(due, after)) { // The clock may have gone back.
			return
		}
		for late := time.Now().Add(every / 10); !s.progress.isQuiet() && time.Now().Before(late); {
			if !pause(ctx, quietTimeOfRelist) {
				return
			}
		}
		if k.Checkpoint().LastFullList.Equal(last) && s.Relist(ctx) != nil {
			return
		}
	}
}

// pause waits for d, and reports false if ctx was done first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
