package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/link"
	"github.com/warmwatch/warmwatch/test/e2e/meter"
)

// settle is how long an agent that has nothing left to do waits before its steady
// state is measured. It is longer than warmwatch's CommitInterval: what that
// writes, and the processor time of it, is counted.
const settle = 1200 * time.Millisecond

// agent is one run.
type agent struct {
	Spec
	in  *bufio.Scanner
	out *json.Encoder

	meter    meter.Meter
	informer *informer
	recorder *recorder
	sampler  *sampler
	running  sync.WaitGroup
	cancel   context.CancelFunc

	begin      time.Time
	cpuBefore  time.Duration
	diskBefore float64

	relistsBefore int      // Of warmwatch, before what is measured.
	members       []*agent // Of a fleet.
}

// Run is the whole life of an agent. What it returns the parent was told, too.
func Run(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &agent{in: bufio.NewScanner(in), out: json.NewEncoder(out), cancel: cancel}
	a.in.Buffer(nil, 1<<20)
	err := a.run(ctx)
	if err != nil {
		err = errors.Join(err, a.out.Encode(Message{Error: err.Error()}))
	}
	return err
}

func (a *agent) run(ctx context.Context) error {
	line, err := a.hear()
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(line), &a.Spec); err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	switch a.Mode {
	case ModeStart:
		return a.start(ctx)
	case ModeRelist:
		return a.relist(ctx)
	case ModeEvents:
		return a.events(ctx)
	case ModeLatency:
		return a.latency(ctx)
	case ModeFleet:
		return a.fleet(ctx)
	case ModeMemory:
		return a.memory(ctx)
	}
	return fmt.Errorf("unknown mode %q", a.Mode)
}

// hear waits for the parent's next line.
func (a *agent) hear() (string, error) {
	if !a.in.Scan() {
		return "", errors.Join(errors.New("the parent is gone"), a.in.Err())
	}
	return a.in.Text(), nil
}

// hearCommand waits for a command with a number, which may be left out.
func (a *agent) hearCommand(want string) (int, error) {
	line, err := a.hear()
	if err != nil {
		return 0, err
	}
	command, argument, _ := strings.Cut(line, " ")
	if command != want {
		return 0, fmt.Errorf("heard %q, want %q", command, want)
	}
	if argument == "" {
		return 0, nil
	}
	return strconv.Atoi(argument)
}

func (a *agent) ready() error { return a.out.Encode(Message{Ready: true}) }

// report sends figures, unless they are not of what was to be measured.
func (a *agent) report(figures map[string]float64) error {
	relists, reason, err := a.relistsSoFar()
	if err != nil {
		return err
	}
	relists -= a.relistsBefore
	if a.warm() && (a.Resumes && relists > 0 || a.Relists && relists == 0) {
		return a.out.Encode(Message{Skipped: fmt.Sprintf("warmwatch relisted %d times (%s)", relists, reason)})
	}
	return a.out.Encode(Message{Figures: figures})
}

// relistsSoFar are those of warmwatch, of all members of a fleet together. That it
// cannot write its file is an error, unless it is to do without.
func (a *agent) relistsSoFar() (n int, reason string, err error) {
	for _, m := range append([]*agent{a}, a.members...) {
		if m.informer == nil || m.informer.status == nil {
			continue
		}
		status := m.informer.status()
		if status.Err != nil && !a.MemoryOnly {
			return 0, "", fmt.Errorf("persistence is degraded: %w", status.Err)
		}
		n += status.Relists
		reason = status.Reason
	}
	return n, reason, nil
}

// listerWatcher reaches the API server, metered, over the link if there is one.
func (a *agent) listerWatcher() (cache.ListerWatcher, error) {
	cfg := a.Server.config()
	if a.Dial != "" {
		cfg = link.Attach(cfg, a.Dial)
	}
	return newListerWatcher(a.Spec, a.meter.Attach(cfg))
}

// launch opens and runs the informer; the clock starts just before.
func (a *agent) launch(ctx context.Context, lw cache.ListerWatcher) error {
	a.recorder = newRecorder(a.Spec)
	a.sampler = startSampler()
	a.cpuBefore, a.diskBefore = cpuTime(), diskWritten()
	a.begin = time.Now()
	var err error
	if a.informer, err = openInformer(a.Spec, lw); err != nil {
		return err
	}
	if err := a.addHandlers(); err != nil {
		return err
	}
	a.running.Go(func() { a.informer.RunWithContext(ctx) })
	return nil
}

// addHandlers adds the recorder, and others that only count.
func (a *agent) addHandlers() error {
	if a.Durable && a.warm() {
		return a.informer.addDurable(a.recorder)
	}
	if _, err := a.informer.AddEventHandler(a.recorder); err != nil {
		return err
	}
	for range a.Handlers - 1 {
		if _, err := a.informer.AddEventHandler(&recorder{}); err != nil {
			return err
		}
	}
	return nil
}

// stop ends the informer and closes the file.
func (a *agent) stop() error {
	a.cancel()
	a.running.Wait()
	return a.informer.close()
}

// start measures one start.
func (a *agent) start(ctx context.Context) error {
	lw, err := a.listerWatcher()
	if err != nil {
		return err
	}
	if err := a.launch(ctx, lw); err != nil {
		return err
	}
	figures := map[string]float64{}
	if err := wait(ctx, a.informer.HasSyncedChecker().Done()); err != nil {
		return err
	}
	figures[result.HasSynced] = millis(time.Since(a.begin))
	if err := wait(ctx, a.recorder.done()); err != nil {
		return err
	}
	if err := a.awaitLive(ctx); err != nil {
		return err
	}
	time.Sleep(settle)
	added, caughtUp := a.recorder.times()
	if !added.IsZero() {
		figures[result.AllAdded] = millis(added.Sub(a.begin))
	}
	if a.Changed > 0 {
		figures[result.CaughtUp] = millis(caughtUp.Sub(a.begin))
		figures[result.Notifications] = float64(a.recorder.notifications.Load())
	}
	a.measureProcess(figures)
	if err := a.report(figures); err != nil {
		return err
	}
	return a.stop()
}

// awaitLive waits until warmwatch, which syncs before it has asked the server, has
// a watch; client-go has one soon after it has synced.
func (a *agent) awaitLive(ctx context.Context) error {
	if a.informer.status == nil {
		return nil
	}
	for {
		if s := a.informer.status(); s.Phase == "Live" {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// measureProcess adds what is common to all modes that measure a start.
func (a *agent) measureProcess(figures map[string]float64) {
	figures[result.CPU] = (cpuTime() - a.cpuBefore).Seconds()
	figures[result.DiskWritten] = diskWritten() - a.diskBefore
	figures[result.Received] = float64(a.meter.BytesReceived())
	figures[result.Requests] = float64(a.requests())
	figures[result.PeakHeap], figures[result.PeakAnon] = a.sampler.peaks()
	figures[result.SteadyHeap], figures[result.SteadyAnon] = steadyMemory()
	figures[result.FileSize] = 0
	if a.warm() {
		figures[result.FileSize] = fileSize(a.File)
	}
}

func (a *agent) requests() int {
	n := 0
	for _, count := range a.meter.Requests() {
		n += count
	}
	return n
}

// wait is an error if the context ends first.
func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
