package reflector

import (
	"context"
	"fmt"
	"math/rand"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/warmwatch/warmwatch/internal/request"
)

// minWatchTimeout is client-go's default (reflector.go). A watch ends after once to
// twice this time, so that none hangs for ever.
const minWatchTimeout = 5 * time.Minute

// watchOptions returns the options of client-go's Reflector (reflector.go, watch).
func watchOptions(rv string) metav1.ListOptions {
	timeout := int64((minWatchTimeout + time.Duration(rand.Float64()*float64(minWatchTimeout))).Seconds())
	return metav1.ListOptions{ResourceVersion: rv, AllowWatchBookmarks: true, TimeoutSeconds: &timeout}
}

// takeHandover returns the watch that was kept for the Reflector, if any.
func (r *Resumer) takeHandover() *watcher {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.handover
	r.handover = nil
	return w
}

// demanded returns how the next List relists, or nil.
func (r *Resumer) demanded() *Relisting {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// handOver keeps w for the Reflector's next Watch. If ctx has ended, there is no next Watch, and handOver ends w.
func (r *Resumer) handOver(ctx context.Context, w *watcher) error {
	r.mu.Lock()
	err := ctx.Err()
	if err == nil {
		r.handover = w
	}
	r.mu.Unlock()
	if err != nil {
		w.end()
	}
	return err
}

const (
	// quickClose: a resumed watch that ends sooner than this without an event counts
	// as expired, because servers that keep no history close it at once instead of
	// answering 410 (kubernetes#104171).
	quickClose = 2 * time.Second
	// closedAtOnce is the reason for a relist after quickClose.
	closedAtOnce = "a resumed watch was closed at once, without an event"
)

// resume opens the watch at the store's resourceVersion, for the Reflector. If
// the server does not have the events since, it returns how to relist.
func (r *Resumer) resume(ctx context.Context, rv string) (*Relisting, error) {
	w, how, err := r.open(ctx, watchOptions(rv))
	if err != nil || how != nil {
		return how, err
	}
	// If the answer has the store's version, no event can be missing.
	if w.unproven = w.answer == nil || w.answer.ResourceVersion != rv; w.unproven {
		err = w.await(ctx)
	}
	if err != nil {
		how = r.ended(ending{err: err, byEvent: true})
		err = fmt.Errorf("reflector: watch from resourceVersion %s: %w", rv, err)
	} else {
		how = r.demanded() // Demanded meanwhile.
	}
	if how != nil || err != nil {
		w.end()
		return how, err
	}
	r.informer.Resuming(rv)
	return nil, r.handOver(ctx, w)
}

// openedLate: if a watch takes longer to open, the server that has opened it may not be the one that has answered or
// listed, and its etcd may have been put back. Go's HTTP/2 transport sends a request again, on another connection, if
// the first server has not processed it.
const openedLate = 2 * time.Second

// open opens a watch, and calls check beside it. It returns how to relist if the server's history may not be the
// store's, or if the watch cannot be opened for a reason that lasts.
func (r *Resumer) open(ctx context.Context, o metav1.ListOptions) (*watcher, *Relisting, error) {
	watching, cancel := context.WithCancel(ctx)
	w := &watcher{
		r: r, cancel: cancel, resourceVersion: o.ResourceVersion,
		events:  make(chan watch.Event, eventBuffer),
		stopped: make(chan struct{}),
		ended:   make(chan struct{}),
		expired: make(chan string, 1),
	}
	if o.TimeoutSeconds != nil {
		w.lasts = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	opened := make(chan error, 1)
	go func() {
		inner, err := r.lw.WatchWithContext(request.WithMeter(watching, &w.meter), o)
		w.inner, w.opened = inner, time.Now()
		opened <- err
	}()
	how, err := r.check(ctx, w)
	if checked := time.Now(); err == nil && how == nil {
		select {
		case err := <-opened:
			if err != nil {
				cancel()
				return nil, r.ended(ending{err: err}), fmt.Errorf("reflector: watch from resourceVersion %s: %w", o.ResourceVersion, err)
			}
			if time.Since(checked) > openedLate {
				r.doubt()
				how, err = r.check(ctx, w)
			}
			if err != nil || how != nil {
				w.end()
				return nil, how, err
			}
			return w, nil, nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	cancel()
	go func() { // A ListerWatcher may not heed its context.
		if <-opened == nil {
			w.end()
		}
	}()
	return nil, how, err
}

// check asks for the server's cluster, and asks the question if it is due, at the same time. It notes the answer.
func (r *Resumer) check(ctx context.Context, w *watcher) (*Relisting, error) {
	cluster := r.askCluster(ctx)
	var how *Relisting
	if r.isDue() {
		var err error
		if w.answer, how, err = r.question(ctx, w.resourceVersion); err != nil {
			return nil, err
		}
	}
	select {
	case other := <-cluster: // Another cluster is the cause, whatever the answer was.
		if other != nil {
			how = r.demand(*other)
		}
		return how, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// askCluster begins to ask which cluster the server belongs to. The answer is how to relist if the store is of another
// cluster. It is nil if the cluster is the same or not known.
func (r *Resumer) askCluster(ctx context.Context) <-chan *Relisting {
	answer := make(chan *Relisting, 1)
	go func() { answer <- r.opts.Cluster(ctx) }()
	return answer
}

// await waits for the first event, or until the watch is quiet. kube-apiserver says 410 in the first event of a stream
// that it has opened. If the Reflector were the first to read that, it would wait for 0.8 to 1.6 s before it
// lists. If the watch has ended, await returns the error.
func (w *watcher) await(ctx context.Context) error {
	for begun := w.meter.Bytes(); w.quiet < quietTicks; w.quiet++ {
		if w.meter.Bytes() != begun { // An event is coming.
			w.quiet = 0
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(w.tick()):
		case e, ok := <-w.inner.ResultChan():
			w.quiet = 0
			switch {
			case !ok:
				return apierrors.NewResourceExpired(closedAtOnce)
			case e.Type == watch.Error:
				return apierrors.FromObject(e.Object)
			}
			w.first = &e
			return nil
		}
	}
	return nil
}
