package reflector

import (
	"context"
	"fmt"
	"math/rand"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
)

// minWatchTimeout is client-go's default (reflector.go). A watch ends after once to
// twice this time, so that none hangs for ever.
const minWatchTimeout = 5 * time.Minute

// watchOptions returns the options of client-go's Reflector (reflector.go, watch).
func watchOptions(rv string) metav1.ListOptions {
	timeout := int64((minWatchTimeout + time.Duration(rand.Float64()*float64(minWatchTimeout))).Seconds())
	return metav1.ListOptions{ResourceVersion: rv, AllowWatchBookmarks: true, TimeoutSeconds: &timeout}
}

// A handover is an open watch, kept from a List for the Reflector's next Watch.
type handover struct {
	watch.Interface
	resourceVersion string
	opened          time.Time
	first           *watch.Event // An event that was received already, or nil.
	unproven        bool         // A resumed watch, which must not close at once.
}

// takeHandover returns the watch that was kept for the Reflector, if any.
func (r *Resumer) takeHandover() *handover {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.handover
	r.handover = nil
	return h
}

// forced returns how a relist was demanded, or nil.
func (r *Resumer) forced() *Relisting {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// handOver keeps h for the Reflector's next Watch.
func (r *Resumer) handOver(h *handover) error {
	r.mu.Lock()
	old := r.handover
	stopped := r.stopped
	if stopped {
		old = h
	} else {
		r.handover = h
	}
	r.mu.Unlock()
	if old != nil {
		old.Stop()
	}
	if stopped {
		return context.Canceled
	}
	return nil
}

const (
	// quickClose: a resumed watch that ends sooner than this without an event counts
	// as expired, because servers that keep no history close it at once instead of
	// answering 410 (kubernetes#104171).
	quickClose = 2 * time.Second
	// refusalTime is how long List waits for the first event of a resumed watch.
	// kube-apiserver says 410 in the first event of a stream that it has opened. If
	// the Reflector were the first to read that, it would wait for 0.8 to 1.6 s
	// before it lists.
	refusalTime = 100 * time.Millisecond
)

// closedAtOnce is the reason for a relist after a watch that ended within quickClose.
const closedAtOnce = "a resumed watch was closed at once, without an event"

// resume opens the watch at the store's resourceVersion, for the Reflector. If
// the server does not have the events since, it returns how to relist.
func (r *Resumer) resume(ctx context.Context, rv string) (*Relisting, error) {
	serverVersion, how, err := r.ask(ctx, rv)
	if err == nil && how == nil {
		how, err = r.askForLast(ctx, serverVersion, rv)
	}
	if err != nil {
		return nil, err
	}
	if how != nil {
		return r.found(*how), nil
	}
	w, err := r.lw.WatchWithContext(ctx, watchOptions(rv))
	opened := err == nil
	if opened && r.openedLate() {
		if serverVersion, how, err = r.ask(ctx, rv); err != nil || how != nil {
			w.Stop()
			if how != nil {
				how = r.found(*how)
			}
			return how, err
		}
	}
	if opened {
		open := &handover{Interface: w, resourceVersion: rv, opened: time.Now(), unproven: true}
		if serverVersion != rv { // If they are equal, no event can be missing.
			err = open.await(ctx)
		}
		if err == nil {
			if how := r.forced(); how != nil { // Demanded meanwhile.
				w.Stop()
				return how, nil
			}
			r.obs.Resuming(rv, serverVersion)
			return nil, r.handOver(open)
		}
		w.Stop()
	}
	if how := r.ended(ending{err: err, at: rv, byEvent: opened}); how != nil {
		return how, nil
	}
	return nil, fmt.Errorf("reflector: watch from resourceVersion %s: %w", rv, err)
}

// await waits for the first event, at most for refusalTime: there may be none. If the
// watch has ended, it returns the error.
func (h *handover) await(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(refusalTime):
		return nil
	case e, ok := <-h.ResultChan():
		switch {
		case !ok:
			return apierrors.NewResourceExpired(closedAtOnce)
		case e.Type == watch.Error:
			return apierrors.FromObject(e.Object)
		}
		h.first = &e
		return nil
	}
}

// askPatience is how long the server may take to say whether it has reached a version.
// A server that has not says so after 3 s, and client-go's REST client then repeats
// the request ten times.
const askPatience = 5 * time.Second

// withPatience returns a context that is cancelled after askPatience. It has no deadline:
// a client-side rate limiter that cannot meet one does not wait (flowcontrol.RateLimiter).
func withPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	patient, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(askPatience, cancel)
	return patient, func() {
		timer.Stop()
		cancel()
	}
}

// ask asks the server whether it has reached the store's resourceVersion.
// kube-apiserver accepts a watch from the future, and then filters out every event up
// to that version: unless it is asked, it may be silent for ever.
func (r *Resumer) ask(ctx context.Context, rv string) (serverVersion string, how *Relisting, err error) {
	patient, cancel := withPatience(ctx)
	serverVersion, how, err = r.listOne(patient, rv, rv)
	timedOut := patient.Err() != nil && ctx.Err() == nil
	cancel()
	if err != nil && timedOut {
		serverVersion, how, err = r.listOne(ctx, "", rv)
		order, ok := checkpoint.CompareVersions(serverVersion, rv)
		switch {
		case err != nil:
		case !ok || r.hasNoOrder():
			serverVersion, how, err = r.listOne(ctx, rv, rv)
		case order < 0:
			return "", behind(rv), nil
		}
	}
	switch {
	case isTooLarge(err):
		return "", behind(rv), nil
	case isExpired(err):
		return "", &Relisting{Reason: fmt.Sprintf("resourceVersion %s is too old", rv), Expired: true}, nil
	case isNotUnderstood(err):
		reason := fmt.Sprintf("the server did not answer whether it has reached resourceVersion %s: %v", rv, err)
		return "", &Relisting{Reason: reason, Unanswered: true}, nil
	case err != nil:
		return "", nil, fmt.Errorf("reflector: ask for resourceVersion %s: %w", rv, err)
	}
	r.obs.Contact()
	return serverVersion, how, nil
}

// answerHolds is how long an answer holds for the server that opens a watch. A client
// repeats a request whose connection has failed a second later (client-go, rest/with_retry.go). The watch
// may be opened then at the successor of the server that has answered, which may be behind, and silent for
// ever. No server is replaced by another one within this time.
const answerHolds = time.Second

// noteAnswer is called when an answer begins that the next watch relies on: not when it is asked for, where
// it can be helped, because a client may have to wait for its rate limiter first.
func (r *Resumer) noteAnswer() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered = time.Now()
}

// openedLate reports whether the server at which a watch was opened may be another one than has answered
// for the store's version, and has to be asked. Where the versions of objects have no order, or may have none
// because nothing is resumed, an answer would prove nothing.
func (r *Resumer) openedLate() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.neverResume && !r.noOrder && time.Since(r.answered) >= answerHolds
}

func (r *Resumer) hasNoOrder() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.noOrder
}

func behind(rv string) *Relisting {
	return &Relisting{Reason: fmt.Sprintf("the server is behind resourceVersion %s", rv), Rewrite: true, Rewound: true}
}

// listOne lists one object, not older than notOlderThan. It returns the server's
// version, and how to relist if the answer and the store, which is at rv, may not be of
// one history.
func (r *Resumer) listOne(ctx context.Context, notOlderThan, rv string) (serverVersion string, how *Relisting, err error) {
	o := metav1.ListOptions{Limit: 1, ResourceVersion: notOlderThan}
	if notOlderThan != "" {
		o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	list, err := r.lw.ListWithContext(ctx, o)
	if err != nil {
		return "", nil, err
	}
	r.noteAnswer()
	m, err := meta.ListAccessor(list)
	if err != nil {
		return "", nil, fmt.Errorf("understand list %T: %w", list, err)
	}
	how, err = r.checkAnswer(list, rv)
	return m.GetResourceVersion(), how, err
}

// askAgain asks before a watch that has ended is opened again: the server that comes
// back may be behind, or another one. A server that never answers is believed: the watch would
// show anything else.
func (r *Resumer) askAgain(ctx context.Context, rv string) error {
	if rv == "" || rv == "0" {
		return nil
	}
	_, how, err := r.ask(ctx, rv)
	if how == nil || how.Unanswered {
		return err
	}
	r.found(*how)
	return apierrors.NewResourceExpired(how.Reason)
}
