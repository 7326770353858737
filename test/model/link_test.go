package model_test

import (
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/warmwatch/warmwatch/internal/testsupport/apiserver"
)

// modelLink is a process's connection to the server. While it is dead, requests fail, and the watches that were open
// are silent, also with what was under way, until they end.
type modelLink struct {
	*apiserver.Server

	mu     sync.Mutex
	dead   bool
	deaths int // A watch that was opened before the last one is silent.
	open   map[watch.Interface]struct{}
}

func newModelLink(s *apiserver.Server) *modelLink {
	return &modelLink{Server: s, open: map[watch.Interface]struct{}{}}
}

var errDeadLink = errors.New("the link is dead")

// state returns whether the link is dead, and how often it was.
func (l *modelLink) state() (dead bool, deaths int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead, l.deaths
}

// die has the link be dead for d.
func (l *modelLink) die(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	l.deaths++
	time.AfterFunc(d, l.revive) // Virtual time.
}

func (l *modelLink) revive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = false
	for w := range l.open {
		w.Stop()
	}
	clear(l.open)
}

func (l *modelLink) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if dead, _ := l.state(); dead {
		return nil, errDeadLink
	}
	o.Limit = min(o.Limit, 3) // So that a crash can come between two pages.
	return l.Server.ListWithContext(ctx, o)
}

func (l *modelLink) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), o)
}

func (l *modelLink) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	dead, deaths := l.state()
	if dead {
		return nil, errDeadLink
	}
	w, err := l.Server.WatchWithContext(ctx, o)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[w] = struct{}{}
	linked := &linkedWatch{Interface: w, link: l, deaths: deaths, events: make(chan watch.Event), stop: make(chan struct{})}
	go linked.run()
	return linked, nil
}

func (l *modelLink) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), o)
}

// linkedWatch is a watch over a link.
type linkedWatch struct {
	watch.Interface
	link   *modelLink
	deaths int // Of the link, when it was opened.
	events chan watch.Event
	stop   chan struct{}
	once   sync.Once
}

func (w *linkedWatch) ResultChan() <-chan watch.Event { return w.events }

func (w *linkedWatch) Stop() {
	w.once.Do(func() { close(w.stop) })
	w.Interface.Stop()
}

func (w *linkedWatch) run() {
	defer close(w.events)
	for e := range w.Interface.ResultChan() {
		if _, deaths := w.link.state(); deaths != w.deaths {
			continue
		}
		select {
		case w.events <- e:
		case <-w.stop:
			return
		}
	}
}
