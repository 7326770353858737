package warmwatch

import (
	"context"
	"errors"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/internal/request"
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
	ctx, cancel := context.WithCancel(request.WithReceived(ctx, &s.progress.received))
	defer cancel()
	if !s.enter(ctx, cancel) {
		return
	}
	var wg wait.Group
	detectorStop := make(chan struct{})
	wg.StartWithChannel(detectorStop, s.detector.Run)
	wg.StartWithChannel(s.ended, s.logHanging)
	defer func() {
		s.end()
		cancel()
		close(detectorStop)
		wg.Wait()
	}()
	if s.opts.learns() && !s.identify(ctx) {
		return
	}
	if !s.untilBegun(ctx) {
		return
	}
	s.controller.RunWithContext(klog.NewContext(ctx, s.place.Load().logger))
}

// readRetryDelay is the pause after the file could not be read.
const readRetryDelay = time.Second

// untilBegun calls begin until the file can be read. It returns false if the informer has ended meanwhile.
func (s *SharedIndexInformer) untilBegun(ctx context.Context) bool {
	for {
		err := s.begin(ctx)
		if errors.Is(err, ErrClosed) {
			return false
		}
		s.progress.set(CodeNotRead, err)
		if err == nil {
			return true
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
		closed = s.shared.claim(p, s) != nil
	}
	if closed {
		klog.FromContext(ctx).Info("The informer does not run, because its Cache was closed", "informer", p.name())
		return false
	}
	s.ctx, s.cancel = ctx, cancel
	s.progress.began = time.Now()
	return true
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
	want := s.want()
	decision, err := p.sink.Load(want, s.transform)
	if err != nil {
		return err
	}
	resyncCheckPeriod, err := s.processor.Start(p.queue, p.indexer, p.logger)
	if err != nil {
		return err
	}
	look := s.lookOf(p)
	resumer := reflector.NewResumer(reflector.Options{
		ListerWatcher: checked(s.lw, s.checkRequest),
		Schema:        bySeen(look, s.shared.schemas.of),
		Sink:          p.sink,
		NeverResume:   want.NeverResume,
		Cluster:       s.askCluster,
		Ask:           bySeen(look, askForOne),
		Spread:        s.shared.opts.RelistSpread,
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
		s.serveStored(ctx)
	}
	for _, r := range s.reconcilers {
		s.running.Go(func() { r.run(ctx) })
	}
	s.running.Go(func() { s.relistRegularly(ctx, p.sink) })
	return nil
}

// serveStored makes the stored objects readable before the server is heard. See Options.ServeStaleAfter.
func (s *SharedIndexInformer) serveStored(ctx context.Context) {
	s.serve(s.progress.fromDisk(s.parts.Load().indexer.Len()))
	switch after := s.shared.opts.ServeStaleAfter; {
	case after < 0:
		s.synced.set()
	case after > 0:
		s.running.Go(func() { s.serveStale(ctx, after) })
	}
}

// serveStale makes HasSynced true once the server has not been heard for a while.
func (s *SharedIndexInformer) serveStale(ctx context.Context, after time.Duration) {
	silent := time.Duration(0)
	for begun := time.Now(); silent < after && !isClosed(s.synced.done); silent = min(time.Since(begun), time.Since(s.progress.lastContact())) {
		if !pause(ctx, after-silent) {
			return
		}
	}
	if s.synced.set() {
		s.place.Load().logger.Info("The server was not heard, HasSynced is true with the objects from disk", "silent", silent.Round(time.Second))
	}
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
	s.running.Wait()
	s.processor.Wait()
	s.mu.Lock()
	for _, r := range s.reconcilers { // Some never ran, because begin has failed after openReconcilers.
		r.close()
	}
	s.mu.Unlock()
	if p != nil {
		p.queue.Stop()
		p.close()
	}
	s.shared.release(s.place.Load().space, s)
	close(s.ended)
}

// detach makes the informer stop using the file, because the Cache is closing. Acknowledgements from now on may not be
// stored.
func (s *SharedIndexInformer) detach() {
	s.mu.Lock()
	if s.cancel != nil {
		s.cancel()
	} else if !s.stopped {
		close(s.ended)
	}
	s.stopped = true
	s.mu.Unlock()
	// detach does not wait for the Reflector, because a ListerWatcher may hang.
	// The sink refuses later events.
	if p := s.parts.Load(); p != nil {
		p.sink.Stop()
	}
	s.processor.Stop()
}

// hangingCallback is the time between two looks at callbacks and reconciles, and how long one has run that is logged.
const hangingCallback = time.Minute

// logHanging logs callbacks and reconciles that have been running for long, also while Run waits for them to return.
func (s *SharedIndexInformer) logHanging(ended <-chan struct{}) {
	defer utilruntime.HandleCrash()
	log := func(kind, name, object string, since time.Time) {
		if running := time.Since(since); object != "" && running >= hangingCallback {
			s.place.Load().logger.Error(nil, "A handler or a reconcile has not returned for a while", kind, name, "object", object, "running", running.Round(time.Second))
		}
	}
	for {
		select {
		case <-time.After(hangingCallback):
		case <-ended:
			return
		}
		for _, h := range s.processor.Unfinished() {
			log("handler", h.Name, h.Callback, h.CallbackSince)
		}
		for _, r := range s.Status().Reconcilers {
			log("reconciler", r.Name, r.Reconciling, r.ReconcilingSince)
		}
	}
}
