package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/link"
)

const (
	// settle is how long an agent is left alone when it has got all that was expected:
	// anything more would be noticed, and warmwatch, which writes once a second, has
	// its file up to date. Then comes kill -9.
	settle = 1500 * time.Millisecond
	// idleBytes is what a restart may receive when nothing has changed.
	idleBytes = 100_000
	// After 410 a list of so many objects is first one of metadata, which is less than a
	// tenth of the bytes.
	metadataObjects, goneTimes = 100, 10
	// outage is how long the API server stays unreachable after both agents began.
	outage = 2 * time.Second
	// patience is how long an agent may take to hear of the changes.
	patience = 3 * time.Minute
)

// script is one scene: what is changed while no agent runs, and what warmwatch's agent
// is to do then. A stock informer always begins with the initial state and has no
// changes to catch up. What did not come true is a claim; an error ends the
// demonstration.
type script struct {
	name, title                   string
	updates, creations, deletions int
	forget                        bool // The API server is restarted and etcd compacted.
	unreachable                   bool // What is to be seen happens while both run: see unreachable.

	warm    agentKind
	initial bool // The handler is notified of every object.
	check   func(s *scene, objects int, made []agent.Change, r *run)
}

var scripts = []script{
	{
		name: "cold-start", title: "Cold start: there is no cache file", warm: warmDurable, initial: true,
		check: func(s *scene, objects int, _ []agent.Change, r *run) {
			s.claim(r.Status.StartedFrom == "server" && r.Calls == agent.Calls{Initial: objects},
				fmt.Sprintf("the server was listed, and OnAdd called for %s Pods", thousands(objects)),
				fmt.Sprintf("started from %q, calls %+v", r.Status.StartedFrom, r.Calls))
		},
	},
	{
		name: "nothing-changed", title: "kill -9, restart; nothing has changed; served from disk (ServeStaleAfter -1)", warm: warmStale,
		check: func(s *scene, _ int, _ []agent.Change, r *run) {
			s.claimResumed(r)
			s.claim(r.Calls == agent.Calls{}, "the handler was not called", fmt.Sprintf("calls %+v", r.Calls))
			s.claim(r.BytesReceived < idleBytes, fmt.Sprintf("less than %s were received", bytesText(idleBytes)),
				fmt.Sprintf("%s bytes", thousands(int(r.BytesReceived))))
		},
	},
	{
		name: "caught-up", title: "the same, and HasSynced waits until the cache has caught up (the default)", warm: warmDurable,
		check: func(s *scene, _ int, _ []agent.Change, r *run) {
			s.claimResumed(r)
			s.claim(r.Calls == agent.Calls{}, "the handler was not called", fmt.Sprintf("calls %+v", r.Calls))
		},
	},
	{
		name: "six-changes", title: "kill -9; 3 updates, 1 creation, 2 deletions; restart", warm: warmDurable,
		updates: 3, creations: 1, deletions: 2,
		check: func(s *scene, _ int, made []agent.Change, r *run) {
			s.claimResumed(r)
			s.claimDelivered("exactly these six were delivered, in order", made, r, false)
		},
	},
	{
		name: "unreachable", title: "kill -9, restart while the API server is unreachable; the link returns later",
		unreachable: true,
	},
	{
		name: "history-gone", title: "kill -9; 4 changes, API server restarted, etcd compacted; restart", warm: warmDurable,
		updates: 2, creations: 1, deletions: 1, forget: true,
		check: func(s *scene, _ int, made []agent.Change, r *run) {
			s.claim(r.Status.StartedFrom == "disk" && r.Status.Relists == 1, "the cache was served from disk, and relisted with a diff",
				fmt.Sprintf("status %+v", *r.Status))
			s.claimDelivered("only the 4 real changes were delivered", made, r, true)
		},
	},
	{
		name: "plain-handler", title: "kill -9, restart with a plain handler, which hears of every object again", warm: warmPlain, initial: true,
		check: func(s *scene, objects int, _ []agent.Change, r *run) {
			s.claimResumed(r)
			s.claim(r.Calls == agent.Calls{Initial: objects}, fmt.Sprintf("OnAdd was called for %s Pods", thousands(objects)),
				fmt.Sprintf("calls %+v", r.Calls))
		},
	},
}

// play plays with warmwatch and checks its run, then with client-go.
func (d *demo) play(ctx context.Context, script script, s *scene) error {
	switch {
	case script.unreachable:
		return d.unreachable(ctx, s)
	case script.forget && d.cluster.controlPlane == nil:
		s.Skipped = "the API server of a user's cluster is not restarted"
		return nil
	}
	made, err := d.changes.make(ctx, script.updates, script.creations, script.deletions)
	if err != nil {
		return err
	}
	if script.forget {
		if err := d.cluster.forgetHistory(ctx); err != nil {
			return err
		}
	}
	server, err := d.cluster.contents(ctx)
	if err != nil {
		return err
	}
	expect := agent.Expect{} // A durable handler gets no initial OnAdd in its second life.
	if script.initial {
		expect.Initial = len(server)
	}
	if s.Warmwatch, err = d.visit(ctx, s, d.spec(script.warm), expect, made); err != nil {
		return err
	}
	script.check(s, len(server), made, s.Warmwatch)
	s.ClientGo, err = d.visit(ctx, s, d.spec(stockPlain), agent.Expect{Initial: len(server)}, nil)
	if err == nil && script.forget && len(server) >= metadataObjects {
		warm, stock := s.Warmwatch.BytesReceived, s.ClientGo.BytesReceived
		s.claim(warm*goneTimes <= stock, fmt.Sprintf("metadata and what had changed were asked for: %s; client-go received %s, %s as much",
			bytesText(warm), bytesText(stock), timesText(float64(stock)/float64(warm))), fmt.Sprintf("requests %v", s.Warmwatch.Requests))
	}
	return err
}

// agentKind is an implementation and the kind of its handler. See agent.Spec for stale.
type agentKind struct {
	impl, handler string
	stale         time.Duration
}

var (
	stockPlain  = agentKind{impl: agent.ClientGo, handler: "plain"}
	warmPlain   = agentKind{impl: agent.Warmwatch, handler: "plain"}
	warmDurable = agentKind{impl: agent.Warmwatch, handler: "durable"}
	warmStale   = agentKind{impl: agent.Warmwatch, handler: "durable", stale: -1}
)

// spec is the informer of every scene, whose handler tells of each change.
func (d *demo) spec(k agentKind) agent.Spec {
	return agent.Spec{
		Impl: k.impl, Resource: corev1.SchemeGroupVersion.WithResource("pods"), Kind: "Pod",
		Namespace: d.cluster.namespace, Kubeconfig: d.cluster.kubeconfig, Context: d.cluster.context,
		File: filepath.Join(d.dir, "cache.db"), Wrapped: k.impl == agent.Warmwatch, ServeStaleAfter: k.stale,
		Handlers: []agent.Handler{{Name: "demo", Durable: k.handler == "durable", Tell: true}},
	}
}

// visit runs an agent until it has got what is expected and has settled, takes its
// figures, and kills it.
func (d *demo) visit(ctx context.Context, s *scene, spec agent.Spec, e agent.Expect, made []agent.Change) (r *run, err error) {
	c, err := agent.StartChild(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Kill()) }()
	_, err = c.Do(ctx, agent.Command{Start: []agent.Spec{spec}, Expect: &e, Await: []string{agent.Synced, agent.Delivered, agent.Live}})
	if err != nil {
		return nil, err
	}
	if err := awaitChanges(ctx, c, len(made)); err != nil {
		return nil, err
	}
	return d.finish(ctx, s, c, spec.Impl)
}

// changesDelivered are those that an agent has reported.
func changesDelivered(c *agent.Child) (all []agent.Change) {
	for _, e := range c.Events() {
		all = append(all, e.Change)
	}
	return all
}

func awaitChanges(ctx context.Context, c *agent.Child, n int) error {
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return len(withoutMarks(changesDelivered(c))) >= n, nil
	})
	if err != nil {
		return fmt.Errorf("%d changes were to be delivered, and these were: %v: %w\n%s", n, changesDelivered(c), err, c.Log())
	}
	return nil
}

// finish lets the agent settle, takes its figures, and compares its cache with the
// server.
func (d *demo) finish(ctx context.Context, s *scene, c *agent.Child, impl string) (*run, error) {
	answer, err := c.Do(ctx, agent.Command{Pause: settle, Report: true, Contents: true})
	if err != nil {
		return nil, err
	}
	server, err := d.cluster.contents(ctx)
	if err != nil {
		return nil, err
	}
	detail := contentsDiffer(answer, server)
	s.claim(detail == "", fmt.Sprintf("%s: the cache equals the server, %s Pods", impl, thousands(len(server))), detail)
	return runOf(answer.Report, changesDelivered(c)), nil
}

// unreachable starts both agents while connections are refused.
func (d *demo) unreachable(ctx context.Context, s *scene) (err error) {
	before, err := d.cluster.contents(ctx)
	if err != nil {
		return err
	}
	l, err := link.To(d.cluster.config)
	if err != nil {
		return err
	}
	defer l.Down()
	l.Down()
	var children []*agent.Child
	defer func() {
		for _, c := range children {
			err = errors.Join(err, c.Kill())
		}
	}()
	start := func(k agentKind, command agent.Command) (agent.Message, error) {
		spec := d.spec(k)
		spec.Dial = l.Addr()
		c, err := agent.StartChild(ctx)
		if err != nil {
			return agent.Message{}, err
		}
		children = append(children, c)
		command.Start = []agent.Spec{spec}
		return c.Do(ctx, command)
	}

	served, err := start(warmStale, agent.Command{Await: []string{agent.Synced}, Report: true, Contents: true})
	if err != nil {
		return err
	}
	detail := contentsDiffer(served, before)
	if n := served.Report.Informers[0].BytesReceived; n > 0 {
		detail += fmt.Sprintf("%d bytes received", n)
	}
	s.claim(detail == "", fmt.Sprintf("%s Pods were served from disk, with connections refused", thousands(len(before))), detail)
	// One Pod is deleted before the stock informer lists.
	if _, err := start(stockPlain, agent.Command{Expect: &agent.Expect{Initial: len(before) - 1}}); err != nil {
		return err
	}
	made, err := d.changes.make(ctx, 1, 0, 1)
	if err != nil {
		return err
	}
	warm, stock := children[0], children[1]
	waiting, err := stock.Do(ctx, agent.Command{Pause: outage, Report: true})
	if err != nil {
		return err
	}
	if waiting.Report.Informers[0].Synced.IsZero() {
		s.claim(true, fmt.Sprintf("client-go had nothing after %v, and waits for the link", outage), "")
	}
	if err := l.Up(); err != nil {
		return err
	}
	return d.comeBack(ctx, s, warm, stock, made, served.Report.PeakResident)
}

// comeBack is what both agents do when the link returns. The peak of warmwatch's memory
// is that of before: to read all of the cache is not the agent's own work.
func (d *demo) comeBack(ctx context.Context, s *scene, warm, stock *agent.Child, made []agent.Change, peakMemory int64) (err error) {
	back := time.Now()
	if err := awaitChanges(ctx, warm, len(made)); err != nil {
		return err
	}
	if _, err := warm.Do(ctx, agent.Command{Await: []string{agent.Live}}); err != nil {
		return err
	}
	if _, err := stock.Do(ctx, agent.Command{Await: []string{agent.Synced, agent.Delivered}}); err != nil {
		return err
	}
	if s.Warmwatch, err = d.finish(ctx, s, warm, agent.Warmwatch); err != nil {
		return err
	}
	events := warm.Events()
	s.Warmwatch.CatchUpMillis, s.Warmwatch.PeakMemoryBytes = millisBetween(back, events[len(events)-1].At), peakMemory
	s.claim(s.Warmwatch.Status.Relists == 0, "the watch was resumed without a list", fmt.Sprintf("status %+v", *s.Warmwatch.Status))
	s.claimDelivered("the 2 changes made meanwhile were delivered when the link was back", made, s.Warmwatch, false)
	if s.ClientGo, err = d.finish(ctx, s, stock, agent.ClientGo); err != nil {
		return err
	}
	s.ClientGo.CatchUpMillis = millisBetween(back, s.ClientGo.deliveredAll)
	return nil
}

// contentsDiffer says how what an agent has differs from what the server has; "" if it
// does not.
func contentsDiffer(answer agent.Message, server map[string]string) string {
	cached := answer.Contents[0].Objects
	if maps.Equal(cached, server) {
		return ""
	}
	other := slices.DeleteFunc(slices.Collect(maps.Keys(server)), func(key string) bool { return cached[key] == server[key] })
	return fmt.Sprintf("%d Pods in the cache, %d on the server; not in the cache as there: %v", len(cached), len(server), other)
}

func (s *scene) claimResumed(r *run) {
	s.claim(r.Status.StartedFrom == "disk" && r.Status.Relists == 0,
		"the cache came from disk, and the watch was resumed without a list", fmt.Sprintf("status %+v", *r.Status))
}

// claimDelivered compares what the handler was called for with what was done.
func (s *scene) claimDelivered(text string, made []agent.Change, r *run, anyOrder bool) {
	detail := difference(made, r.Events, anyOrder)
	if r.Calls.Initial != 0 {
		detail += fmt.Sprintf("; OnAdd was called for %d known objects", r.Calls.Initial)
	}
	s.claim(detail == "", text, detail)
}
