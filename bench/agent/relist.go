package agent

import (
	"context"
	"time"

	"github.com/warmwatch/warmwatch/bench/result"
)

// relist measures how a running informer gets over the loss of the API server's
// history. The parent suspends this process while the server loses it, and wakes
// it with CommandGo.
func (a *agent) relist(ctx context.Context) error {
	lw, err := a.listerWatcher()
	if err != nil {
		return err
	}
	changed := a.Changed
	a.Changed = 0 // They come later.
	if err := a.launch(ctx, lw); err != nil {
		return err
	}
	if err := wait(ctx, a.recorder.done()); err != nil {
		return err
	}
	if err := a.awaitLive(ctx); err != nil {
		return err
	}
	time.Sleep(settle)
	a.sampler.peaks()
	steadyMemory() // Garbage of the start does not count.

	if a.relistsBefore, _, err = a.relistsSoFar(); err != nil {
		return err
	}
	a.recorder.expectChanged(a.Round, changed)
	received, requests := a.meter.BytesReceived(), a.requests()
	a.sampler = startSampler()
	a.cpuBefore, a.diskBefore = cpuTime(), diskWritten()
	if err := a.ready(); err != nil {
		return err
	}
	if _, err := a.hearCommand(CommandGo); err != nil {
		return err
	}
	a.begin = time.Now()
	if err := wait(ctx, a.recorder.done()); err != nil {
		return err
	}
	time.Sleep(settle) // Notifications that say nothing new come until then.
	_, caughtUp := a.recorder.times()
	figures := map[string]float64{
		result.CaughtUp:      millis(caughtUp.Sub(a.begin)),
		result.Notifications: float64(a.recorder.notifications.Load()),
	}
	a.measureProcess(figures)
	figures[result.Received] -= float64(received)
	figures[result.Requests] -= float64(requests)
	if err := a.report(figures); err != nil {
		return err
	}
	return a.stop()
}
