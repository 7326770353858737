package reflector

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
)

// A questioning says whether the server is asked for one object before its watch is read. kube-apiserver accepts a
// watch from the future, and then filters out every event up to that version: such a watch may be silent for ever.
type questioning int

const (
	// questionDue: at a start, after the server could not be reached, after a watch has ended before its time, and
	// beside a watch that has opened late.
	questionDue questioning = iota
	// questionAnswered: since the answer nothing has made the question due.
	questionAnswered
	// questionUseless: the answers say nothing, or cost too much. Once the store has caught up, this process does not ask
	// again.
	questionUseless
)

// A reply is an answer, and how long the server took for it.
type reply struct {
	request.Answer
	took time.Duration
}

// doubt makes the question due: the server that comes back may be behind, or another one.
func (r *Resumer) doubt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.questioning == questionAnswered {
		r.questioning = questionDue
	}
}

// isDue reports whether a question is due before a watch. Until the store has caught up, each watch needs an answer. No
// question is due if the store has no version: where versions have no common order, an answer says nothing.
func (r *Resumer) isDue() bool {
	ordered := checkpoint.HasOrder(r.sink.resourceVersion())
	r.mu.Lock()
	defer r.mu.Unlock()
	return (r.questioning == questionDue || !r.caughtUp) && ordered
}

// question asks the question, and returns how to relist if the answer contradicts the store, which is at rv.
func (r *Resumer) question(ctx context.Context, rv string) (*reply, *Relisting, error) {
	a, err := r.ask(ctx)
	if err != nil { // It proves nothing.
		return nil, nil, fmt.Errorf("reflector: ask the server for its version: %w", err)
	}
	r.informer.Contact()
	if how := r.contradiction(a, rv); how != nil {
		return nil, r.demand(*how), nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.questioning == questionDue {
		r.questioning = questionAnswered
	}
	return a, nil, nil
}

// ask asks the server for one object, and its newest version.
func (r *Resumer) ask(ctx context.Context) (*reply, error) {
	begun := time.Now()
	a, err := r.answer(ctx)
	if err != nil {
		return nil, err
	}
	// More than one item: the server ignores the limit, or the ListerWatcher reads all pages or asks for a version at
	// which no limit holds.
	if a.Items > 1 {
		r.mu.Lock()
		r.questioning = questionUseless
		r.mu.Unlock()
		a.First, a.Count = nil, -1
		if a.Newest == a.ResourceVersion { // The list's version may be its newest object's. Then it leaves out deletions.
			a.ResourceVersion = ""
		}
	}
	return &reply{a, time.Since(begun)}, nil
}

// answer asks. If the client's transport is wrapped, it takes no token of the client's rate limiter.
func (r *Resumer) answer(ctx context.Context) (request.Answer, error) {
	if r.opts.Ask != nil {
		a, err := r.opts.Ask(ctx)
		if !errors.Is(err, request.ErrNotSeen) && !errors.Is(err, request.ErrUnsupported) {
			return a, err
		}
	}
	list, err := r.lw.ListWithContext(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return request.Answer{}, err
	}
	return request.AnswerIn(list)
}

// contradiction returns how to relist if the answer and the store at rv cannot belong to one history.
func (r *Resumer) contradiction(a *reply, rv string) *Relisting {
	if order, ok := checkpoint.CompareVersions(a.ResourceVersion, rv); ok && order < 0 {
		return &Relisting{Cause: checkpoint.CauseServerBehind, Reason: fmt.Sprintf("the server is at version %s, the store at %s", a.ResourceVersion, rv), Newest: true}
	}
	if a.First == nil {
		return nil
	}
	v := *a.First
	if order, ok := checkpoint.CompareVersions(v.ResourceVersion, rv); !ok || order > 0 || !r.sink.contradicts(v) {
		return nil
	}
	reason := fmt.Sprintf("the store does not have %s as the server does, at version %s", keyOf(v), v.ResourceVersion)
	return &Relisting{Cause: checkpoint.CauseContradiction, Reason: reason, Newest: true}
}
