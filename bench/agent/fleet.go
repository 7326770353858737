package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/warmwatch/warmwatch/bench/result"
)

// fleet is many agents in one process, which all start at once. Each has its own
// connection, file and informer.
func (a *agent) fleet(ctx context.Context) error {
	for i := range a.Agents {
		m := &agent{Spec: a.Spec, cancel: a.cancel}
		m.File = fmt.Sprintf("%s%03d.db", a.File, i)
		a.members = append(a.members, m)
	}
	if err := a.ready(); err != nil {
		return err
	}
	if _, err := a.hearCommand(CommandGo); err != nil {
		return err
	}
	a.begin, a.cpuBefore = time.Now(), cpuTime()
	var (
		running  sync.WaitGroup
		mu       sync.Mutex
		errs     []error
		synced   time.Duration // Of the last one.
		caughtUp time.Duration
	)
	for _, m := range a.members {
		running.Go(func() {
			s, c, err := m.startInFleet(ctx, a.begin)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			synced, caughtUp = max(synced, s), max(caughtUp, c)
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	time.Sleep(settle)
	figures := map[string]float64{
		result.LastSynced:   millis(synced),
		result.LastCaughtUp: millis(caughtUp),
		result.AgentsCPU:    (cpuTime() - a.cpuBefore).Seconds(),
	}
	for _, m := range a.members {
		figures[result.Received] += float64(m.meter.BytesReceived())
		figures[result.Requests] += float64(m.requests())
	}
	_, figures[result.SteadyAnon] = steadyMemory()
	if err := a.report(figures); err != nil {
		return err
	}
	a.cancel()
	for _, m := range a.members {
		m.running.Wait()
		errs = append(errs, m.informer.close())
	}
	return errors.Join(errs...)
}

// startInFleet is one agent's start; the clock is that of all.
func (a *agent) startInFleet(ctx context.Context, begin time.Time) (synced, caughtUp time.Duration, err error) {
	lw, err := a.listerWatcher()
	if err != nil {
		return 0, 0, err
	}
	a.recorder = newRecorder(a.Spec)
	if a.informer, err = openInformer(a.Spec, lw); err != nil {
		return 0, 0, err
	}
	if err := a.addHandlers(); err != nil {
		return 0, 0, err
	}
	a.running.Go(func() { a.informer.RunWithContext(ctx) })
	if err := wait(ctx, a.informer.HasSyncedChecker().Done()); err != nil {
		return 0, 0, err
	}
	synced = time.Since(begin)
	if err := wait(ctx, a.recorder.done()); err != nil {
		return 0, 0, err
	}
	_, at := a.recorder.times()
	return synced, at.Sub(begin), nil
}
