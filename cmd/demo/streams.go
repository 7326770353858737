package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

const (
	// Each update takes the server more than a millisecond, and its history must
	// still hold the first when the last is made.
	maxBacklog = 20_000
	minBacklog = 1_000
)

// agentKind is an implementation and the kind of its handler.
type agentKind struct{ impl, handler string }

func (k agentKind) String() string { return k.impl + " " + k.handler }

var (
	stockPlain  = agentKind{implClientGo, handlerPlain}
	warmPlain   = agentKind{implWarmwatch, handlerPlain}
	warmDurable = agentKind{implWarmwatch, handlerDurable}
	agentKinds  = []agentKind{stockPlain, warmPlain, warmDurable}
)

// sleeper is an agent that sleeps through the changes.
type sleeper struct {
	kind agentKind
	*child
	before *report // When it was live, before it fell asleep.
}

// measureStreams finds how many events a second each kind of agent delivers: those
// of a backlog that the server sends as fast as it can, and those of the same
// updates from memory.
func (d *demo) measureStreams(ctx context.Context) error {
	pods, from, err := podsOf(ctx, d.cluster.client, d.cluster.namespace)
	if err != nil {
		return err
	}
	backlog := &rates{
		Name:      "backlog from the server",
		Events:    min(max(len(pods), minBacklog), maxBacklog),
		BoundBy:   "the server's encoding, TLS and the decoding of events, on the same processors as the informer",
		PerSecond: map[string]float64{},
	}
	d.result.Streams = append(d.result.Streams, backlog)
	err = d.measureBacklog(ctx, backlog, len(pods), func() error {
		d.screen.tell("making %s updates, while the agents are suspended", thousands(backlog.Events))
		return workload.TouchPods(ctx, d.cluster.config, pods, backlog.Events, d.screen.progress("updated"))
	})
	if err != nil {
		return err
	}
	replay := &rates{
		Name:      "the same updates, decoded, from memory",
		Events:    d.options.Replayed,
		BoundBy:   "the informer alone",
		PerSecond: map[string]float64{},
	}
	d.result.Streams = append(d.result.Streams, replay)
	return d.measureReplay(ctx, replay, from, len(pods))
}

// measureBacklog suspends running agents (SIGSTOP), lets the updates be made, and
// wakes the agents one after the other. The server has ended their watches by
// then: so each resumes with the same backlog, and has the machine for itself.
func (d *demo) measureBacklog(ctx context.Context, r *rates, objects int, makeUpdates func() error) (err error) {
	var sleepers []*sleeper
	defer func() {
		for _, a := range sleepers {
			err = errors.Join(err, a.kill())
		}
	}()
	for _, kind := range agentKinds {
		o := d.agentOptions(kind.impl, kind.handler, objects)
		o.Quiet = true
		o.CacheFile = filepath.Join(d.dir, "backlog-"+kind.handler+".db")
		c, err := d.start(o)
		if err != nil {
			return err
		}
		a := &sleeper{kind: kind, child: c}
		sleepers = append(sleepers, a)
		if err := d.awaitAll(ctx, c, o, expectation{initial: true}); err != nil {
			return err
		}
		if err := a.fallAsleep(ctx, r.Events); err != nil {
			return err
		}
	}
	if err := makeUpdates(); err != nil {
		return err
	}
	for _, a := range sleepers {
		if err := a.measure(ctx, r); err != nil {
			return err
		}
		if err := a.kill(); err != nil {
			return err
		}
	}
	return nil
}

// fallAsleep suspends the agent, which will time the next n events.
func (a *sleeper) fallAsleep(ctx context.Context, n int) error {
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	if err := a.ask(commandStream, n); err != nil {
		return err
	}
	var err error
	if a.before, err = a.report(ctx); err != nil { // It has obeyed.
		return err
	}
	return a.cmd.Process.Signal(syscall.SIGSTOP)
}

// measure wakes the agent.
func (a *sleeper) measure(ctx context.Context, r *rates) error {
	if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	what := fmt.Sprintf("a backlog of %d events (%s)", r.Events, a.kind)
	heard, err := a.await(ctx, what, func(s said) bool { return s.stream != nil })
	if err != nil {
		return err
	}
	after, err := a.report(ctx)
	if err != nil {
		return err
	}
	if relists(after) != relists(a.before) {
		r.Skipped = fmt.Sprintf("%s relisted, so that its events are not those of the backlog", a.kind)
		return nil
	}
	r.PerSecond[a.kind.String()] = heard.stream.perSecond()
	return nil
}

// relists counts what brings a whole list.
func relists(r *report) int {
	if r.Status != nil {
		return r.Status.Relists
	}
	return r.Requests["list"] + r.Requests["watchlist"]
}

// measureReplay runs the agents one after the other, without the server.
func (d *demo) measureReplay(ctx context.Context, r *rates, from string, objects int) error {
	for _, kind := range agentKinds {
		if err := d.replayOne(ctx, r, kind, from, objects); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) replayOne(ctx context.Context, r *rates, kind agentKind, from string, objects int) (err error) {
	o := d.agentOptions(kind.impl, kind.handler, objects)
	o.Quiet, o.Replay, o.ReplayFrom = true, r.Events, from
	o.CacheFile = filepath.Join(d.dir, "replay-"+kind.handler+".db")
	c, err := d.start(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.kill()) }()
	if _, err := c.await(ctx, "OnAdd for all objects", func(s said) bool { return s.AddedMillis != nil }); err != nil {
		return err
	}
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	if err := c.ask(commandStream, r.Events); err != nil {
		return err
	}
	what := fmt.Sprintf("a replay of %d events (%s)", r.Events, kind)
	heard, err := c.await(ctx, what, func(s said) bool { return s.stream != nil })
	if err != nil {
		return err
	}
	r.PerSecond[kind.String()] = heard.stream.perSecond()
	return nil
}

// perSecond does not count the first event, from which the time is taken.
func (s *stream) perSecond() float64 {
	return float64(s.Events-1) / (s.Millis / 1000)
}
