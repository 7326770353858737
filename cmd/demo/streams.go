package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

const (
	// Each update takes the server more than a millisecond, and its history must
	// still hold the first when the last is made.
	maxBacklog = 20_000
	minBacklog = 1_000
)

// measureStreams finds how many events a second each kind of agent delivers: those
// of a backlog that the server sends as fast as it can, and those of the same
// updates from memory.
func (d *demo) measureStreams(ctx context.Context) error {
	pods, from, err := d.cluster.pods(ctx)
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
	for _, kind := range agentKinds {
		if err := d.measureReplay(ctx, replay, kind, from, len(pods)); err != nil {
			return err
		}
	}
	return nil
}

// startStream starts an agent that counts, and does not tell of each event.
func (d *demo) startStream(ctx context.Context, name string, kind agentKind, objects int, change func(*agent.Spec)) (*agent.Child, error) {
	spec := d.spec(kind)
	spec.File = filepath.Join(d.dir, name+"-"+kind.handler+".db")
	spec.Handlers[0].Tell = false
	change(&spec)
	c, err := agent.StartChild(ctx)
	if err != nil {
		return nil, err
	}
	_, err = c.Do(ctx, agent.Command{
		Start: []agent.Spec{spec}, Expect: &agent.Expect{Initial: objects},
		Await: []string{agent.Synced, agent.Told, agent.Live}, Pause: settle,
	})
	return c, err
}

// measureBacklog suspends running agents (SIGSTOP), lets the updates be made, and
// wakes the agents one after the other. The server has ended their watches by
// then: so each resumes with the same backlog, and has the machine for itself.
func (d *demo) measureBacklog(ctx context.Context, r *rates, objects int, makeUpdates func() error) (err error) {
	var sleepers []*agent.Child
	defer func() {
		for _, c := range sleepers {
			err = errors.Join(err, c.Kill())
		}
	}()
	for _, kind := range agentKinds {
		c, err := d.startStream(ctx, "backlog", kind, objects, func(*agent.Spec) {})
		if c != nil {
			sleepers = append(sleepers, c)
		}
		if err != nil {
			return err
		}
		if _, err := c.Do(ctx, agent.Command{Expect: &agent.Expect{Updates: r.Events}}); err != nil {
			return err
		}
		if err := c.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
	}
	if err := makeUpdates(); err != nil {
		return err
	}
	for i, c := range sleepers {
		if err := c.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		answer, err := c.Do(ctx, agent.Command{Await: []string{agent.Told}, Report: true})
		if err != nil {
			return fmt.Errorf("a backlog of %d events (%s): %w", r.Events, agentKinds[i], err)
		}
		r.add(agentKinds[i], answer.Report)
		if err := c.Kill(); err != nil {
			return err
		}
	}
	return nil
}

// measureReplay runs one agent without the server.
func (d *demo) measureReplay(ctx context.Context, r *rates, kind agentKind, from string, objects int) (err error) {
	c, err := d.startStream(ctx, "replay", kind, objects, func(s *agent.Spec) { s.Recorded, s.From = true, from })
	if c != nil {
		defer func() { err = errors.Join(err, c.Kill()) }()
	}
	if err != nil {
		return err
	}
	answer, err := c.Do(ctx, agent.Command{Expect: &agent.Expect{Updates: r.Events}, Await: []string{agent.Told}, Report: true})
	if err != nil {
		return fmt.Errorf("a replay of %d events (%s): %w", r.Events, kind, err)
	}
	r.add(kind, answer.Report)
	return nil
}

// add notes the rate of an agent, unless its events were not those of the stream. The
// time is taken from the first event, which does not count.
func (r *rates) add(kind agentKind, measured *agent.Report) {
	i := measured.Informers[0]
	if i.Relists > 0 {
		r.Skipped = fmt.Sprintf("%s relisted, so that its events are not those of the backlog", kind)
		return
	}
	r.PerSecond[kind.String()] = float64(r.Events-1) / i.ToldAll.Sub(i.FirstUpdate).Seconds()
}
