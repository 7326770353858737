package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/warmwatch/warmwatch/test/e2e/link"
)

// idleBytes is what a restart may receive when nothing has changed.
const idleBytes = 100_000

// outage is how long the API server stays unreachable after both agents began.
const outage = 2 * time.Second

// script is one scene. What it returns as an error ends the demonstration; what
// did not come true is a claim.
type script struct {
	name, title string
	play        func(context.Context, *scene) error
}

func (d *demo) scripts() []script {
	return []script{
		{"cold-start", "Cold start: there is no cache file", d.coldStart},
		{"nothing-changed", "kill -9, restart; nothing has changed", d.nothingChanged},
		{"six-changes", "kill -9; 3 updates, 1 creation, 2 deletions; restart", d.sixChanges},
		{"unreachable", "kill -9, restart while the API server is unreachable; the link returns later", d.unreachable},
		{"history-gone", "kill -9; 4 changes, API server restarted, etcd compacted; restart", d.historyGone},
		{"plain-handler", "kill -9, restart with a plain handler, which hears of every object again", d.plainHandler},
	}
}

func (d *demo) coldStart(ctx context.Context, s *scene) error {
	return d.playBoth(ctx, s, handlerDurable, expectation{initial: true}, func(n int, r *run) {
		s.claim(r.Status.StartedFrom == "server" && r.Calls == calls{Initial: n},
			fmt.Sprintf("the server was listed, and OnAdd called for %s Pods", thousands(n)),
			fmt.Sprintf("started from %q, calls %+v", r.Status.StartedFrom, r.Calls))
	})
}

func (d *demo) nothingChanged(ctx context.Context, s *scene) error {
	return d.playBoth(ctx, s, handlerDurable, expectation{}, func(_ int, r *run) {
		s.claimResumed(r)
		s.claim(r.Calls == calls{}, "the handler was not called", fmt.Sprintf("calls %+v", r.Calls))
		s.claim(r.BytesReceived < idleBytes, fmt.Sprintf("less than %s were received", bytesText(idleBytes)),
			fmt.Sprintf("%s bytes", thousands(int(r.BytesReceived))))
	})
}

func (d *demo) sixChanges(ctx context.Context, s *scene) error {
	if err := d.changes.make(ctx, 3, 1, 2); err != nil {
		return err
	}
	made := d.changes.take()
	return d.playBoth(ctx, s, handlerDurable, expectation{events: made}, func(_ int, r *run) {
		s.claimResumed(r)
		s.claimDelivered("exactly these six were delivered, in order", made, r, false)
	})
}

func (d *demo) historyGone(ctx context.Context, s *scene) error {
	if d.cluster.controlPlane == nil {
		s.Skipped = "the API server of a user's cluster is not restarted"
		return nil
	}
	if err := d.changes.make(ctx, 2, 1, 1); err != nil {
		return err
	}
	made := d.changes.take()
	if err := d.cluster.forgetHistory(ctx); err != nil {
		return err
	}
	return d.playBoth(ctx, s, handlerDurable, expectation{events: made}, func(_ int, r *run) {
		s.claim(r.Status.StartedFrom == "disk" && r.Status.Relists == 1, "the cache was served from disk, and relisted with a diff",
			fmt.Sprintf("status %+v", *r.Status))
		s.claimDelivered("only the 4 real changes were delivered", made, r, true)
	})
}

func (d *demo) plainHandler(ctx context.Context, s *scene) error {
	return d.playBoth(ctx, s, handlerPlain, expectation{initial: true}, func(n int, r *run) {
		s.claimResumed(r)
		s.claim(r.Calls == calls{Initial: n}, fmt.Sprintf("OnAdd was called for %s Pods", thousands(n)),
			fmt.Sprintf("calls %+v", r.Calls))
	})
}

// playBoth plays with warmwatch and checks its run, then with client-go. A stock
// informer always begins with the initial state and has no changes to catch up.
func (d *demo) playBoth(ctx context.Context, s *scene, handler string, want expectation, check func(objects int, r *run)) error {
	server, err := d.serverDigest(ctx)
	if err != nil {
		return err
	}
	s.Warmwatch, err = d.visit(ctx, s, d.agentOptions(implWarmwatch, handler, server.Objects), want)
	if err != nil {
		return err
	}
	check(server.Objects, s.Warmwatch)
	stock := d.agentOptions(implClientGo, handlerPlain, server.Objects)
	s.ClientGo, err = d.visit(ctx, s, stock, expectation{initial: true})
	return err
}

// unreachable cannot use playBoth: what is to be seen happens while both run.
func (d *demo) unreachable(ctx context.Context, s *scene) (err error) {
	before, err := d.serverDigest(ctx)
	if err != nil {
		return err
	}
	l, err := link.To(d.cluster.config)
	if err != nil {
		return err
	}
	defer l.Down()
	l.Down()

	warmOptions := d.agentOptions(implWarmwatch, handlerDurable, before.Objects)
	stockOptions := d.agentOptions(implClientGo, handlerPlain, before.Objects)
	warmOptions.Dial, stockOptions.Dial = l.Addr(), l.Addr()
	stockOptions.Expect-- // One is deleted before the stock informer lists.
	warm, err := d.start(warmOptions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, warm.kill()) }()
	peakMemory, err := d.claimServedFromDisk(ctx, s, warm, before)
	if err != nil {
		return err
	}
	stock, err := d.start(stockOptions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stock.kill()) }()

	made, err := d.changeInOutage(ctx)
	if err != nil {
		return err
	}
	if heard, _ := stock.heard(); heard.SyncedMillis == nil {
		s.claim(true, fmt.Sprintf("client-go had nothing after %v, and waits for the link", outage), "")
	}
	if err := l.Up(); err != nil {
		return err
	}
	back := time.Now()
	if err := d.awaitAll(ctx, warm, warmOptions, expectation{events: made}); err != nil {
		return err
	}
	warmCaughtUp := millis(time.Since(back))
	if err := d.awaitAll(ctx, stock, stockOptions, expectation{initial: true}); err != nil {
		return err
	}
	stockCaughtUp := millis(time.Since(back))

	if s.Warmwatch, err = d.finish(ctx, s, warm, warmOptions); err != nil {
		return err
	}
	s.Warmwatch.CatchUpMillis, s.Warmwatch.PeakMemoryBytes = &warmCaughtUp, peakMemory
	s.claim(s.Warmwatch.Status.Relists == 0, "the watch was resumed without a list", fmt.Sprintf("status %+v", *s.Warmwatch.Status))
	s.claimDelivered("the 2 changes made meanwhile were delivered when the link was back", made, s.Warmwatch, false)
	if s.ClientGo, err = d.finish(ctx, s, stock, stockOptions); err != nil {
		return err
	}
	s.ClientGo.CatchUpMillis = &stockCaughtUp
	return nil
}

// changeInOutage makes two changes, and waits until the outage has lasted long enough.
func (d *demo) changeInOutage(ctx context.Context) (made []event, err error) {
	if err := d.changes.make(ctx, 1, 0, 1); err != nil {
		return nil, err
	}
	return d.changes.take(), sleep(ctx, outage)
}

// claimServedFromDisk waits for HasSynced and reads the cache, while connections
// to the API server are refused. It returns the peak of the agent's memory until
// then: to read all of the cache is not the agent's own work.
func (d *demo) claimServedFromDisk(ctx context.Context, s *scene, warm *child, before *digest) (peakMemory int64, err error) {
	if _, err := warm.await(ctx, "HasSynced", func(s said) bool { return s.SyncedMillis != nil }); err != nil {
		return 0, err
	}
	figures, err := warm.report(ctx)
	if err != nil {
		return 0, err
	}
	served, err := warm.digest(ctx)
	if err != nil {
		return 0, err
	}
	s.claim(*served == *before && figures.BytesReceived == 0,
		fmt.Sprintf("%s Pods were served from disk, with connections refused", thousands(served.Objects)),
		fmt.Sprintf("served %+v, the server had %+v; %d bytes received", *served, *before, figures.BytesReceived))
	return figures.PeakMemoryBytes, nil
}

func (s *scene) claimResumed(r *run) {
	s.claim(r.Status.StartedFrom == "disk" && r.Status.Relists == 0,
		"the cache came from disk, and the watch was resumed without a list", fmt.Sprintf("status %+v", *r.Status))
}

// claimDelivered compares what the handler was called for with what was done.
func (s *scene) claimDelivered(text string, made []event, r *run, anyOrder bool) {
	detail := difference(made, r.Events, anyOrder)
	if r.Calls.Initial != 0 {
		detail += fmt.Sprintf("; OnAdd was called for %d known objects", r.Calls.Initial)
	}
	s.claim(detail == "", text, detail)
}
