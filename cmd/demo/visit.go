package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// settle is how long an agent is left alone when it has got all that was expected:
// anything more would be noticed, and warmwatch, which writes once a second, has
// its file up to date. Then comes kill -9.
const settle = 1500 * time.Millisecond

// demo is the stage.
type demo struct {
	options options
	cluster *cluster
	dir     string // Of cache files and logs.
	changes *changes
	result  *result
	screen  *screen
}

// expectation is what an agent is waited for.
type expectation struct {
	initial bool    // OnAdd for every object.
	events  []event // The handler's calls besides those.
}

// agentOptions are those of every scene; a durable handler is a plain one for
// client-go.
func (d *demo) agentOptions(impl, handler string, objects int) agentOptions {
	return agentOptions{
		Impl:       impl,
		Handler:    handler,
		Kubeconfig: d.cluster.kubeconfig,
		Context:    d.cluster.context,
		Namespace:  d.cluster.namespace,
		CacheFile:  filepath.Join(d.dir, "cache.db"),
		Expect:     objects,
	}
}

func (d *demo) start(o agentOptions) (*child, error) {
	return startChild(o, filepath.Join(d.dir, "agent-"+o.Impl+".log"))
}

// visit runs an agent until it has got what is expected and has settled, asks for
// its figures, compares its cache with the server, and kills it.
func (d *demo) visit(ctx context.Context, s *scene, o agentOptions, want expectation) (r *run, err error) {
	c, err := d.start(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.kill()) }()
	if err := d.awaitAll(ctx, c, o, want); err != nil {
		return nil, err
	}
	return d.finish(ctx, s, c, o)
}

// awaitAll waits for what is expected. A durable handler of warmwatch gets no
// initial OnAdd in its second life.
func (d *demo) awaitAll(ctx context.Context, c *child, o agentOptions, want expectation) error {
	if _, err := c.await(ctx, "HasSynced", func(s said) bool { return s.SyncedMillis != nil }); err != nil {
		return err
	}
	if want.initial {
		what := fmt.Sprintf("OnAdd for all %d objects", o.Expect)
		if _, err := c.await(ctx, what, func(s said) bool { return s.AddedMillis != nil }); err != nil {
			return err
		}
	}
	what := fmt.Sprintf("%d notifications", len(want.events))
	if _, err := c.await(ctx, what, func(s said) bool { return len(told(s.Events)) >= len(want.events) }); err != nil {
		return err
	}
	if o.Impl != implWarmwatch {
		return nil
	}
	_, err := c.awaitStatus(ctx, "a live watch", func(s *status) bool { return s.Live })
	return err
}

// finish lets the agent settle and takes its figures.
func (d *demo) finish(ctx context.Context, s *scene, c *child, o agentOptions) (*run, error) {
	if err := sleep(ctx, settle); err != nil {
		return nil, err
	}
	figures, err := c.report(ctx)
	if err != nil {
		return nil, err
	}
	heard, _ := c.heard()
	cached, err := c.digest(ctx)
	if err != nil {
		return nil, err
	}
	server, err := d.serverDigest(ctx)
	if err != nil {
		return nil, err
	}
	s.claim(*cached == *server, fmt.Sprintf("%s: the cache equals the server, %s Pods", o.Impl, thousands(server.Objects)),
		fmt.Sprintf("cache %+v, server %+v", *cached, *server))
	return &run{
		HasSyncedMillis: heard.SyncedMillis,
		AllAddedMillis:  heard.AddedMillis,
		BytesReceived:   figures.BytesReceived,
		Requests:        figures.Requests,
		Calls:           figures.Calls,
		Events:          heard.Events,
		PeakMemoryBytes: figures.PeakMemoryBytes,
		Status:          figures.Status,
	}, nil
}

func (d *demo) serverDigest(ctx context.Context) (*digest, error) {
	pods, _, err := podsOf(ctx, d.cluster.client, d.cluster.namespace)
	if err != nil {
		return nil, err
	}
	return digestOf(pods), nil
}
