package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/warmwatch/warmwatch/test/e2e/link"
	"github.com/warmwatch/warmwatch/test/e2e/meter"
)

// agentCommand is the hidden subcommand. The second process is this program, so
// that one file is all there is to build and to copy to a machine.
const agentCommand = "agent"

const (
	implWarmwatch = "warmwatch"
	implClientGo  = "client-go"

	handlerPlain   = "plain"
	handlerDurable = "durable"
)

// agentOptions is the command line of an agent.
type agentOptions struct {
	Impl       string
	Handler    string
	Kubeconfig string
	Context    string
	Namespace  string
	CacheFile  string // Of warmwatch.
	Dial       string // Address of a link to the API server; empty: no link.
	Expect     int    // How many initial OnAdd there will be.
	Quiet      bool   // Do not tell of each event.
	ReplayFrom string // A resourceVersion: the server's events from there on are replayed.
	Replay     int    // How many events are replayed. 0: informers talk to the server.
}

func (o *agentOptions) flags() *flag.FlagSet {
	set := flag.NewFlagSet(agentCommand, flag.ContinueOnError)
	set.StringVar(&o.Impl, "impl", o.Impl, "")
	set.StringVar(&o.Handler, "handler", o.Handler, "")
	set.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "")
	set.StringVar(&o.Context, "context", o.Context, "")
	set.StringVar(&o.Namespace, "namespace", o.Namespace, "")
	set.StringVar(&o.CacheFile, "cache-file", o.CacheFile, "")
	set.StringVar(&o.Dial, "dial", o.Dial, "")
	set.IntVar(&o.Expect, "expect", o.Expect, "")
	set.BoolVar(&o.Quiet, "quiet", o.Quiet, "")
	set.StringVar(&o.ReplayFrom, "replay-from", o.ReplayFrom, "")
	set.IntVar(&o.Replay, "replay", o.Replay, "")
	return set
}

// args is the command line that flags parses back.
func (o agentOptions) args() []string {
	args := []string{agentCommand}
	o.flags().VisitAll(func(f *flag.Flag) {
		args = append(args, "--"+f.Name+"="+f.Value.String())
	})
	return args
}

// informer is what both implementations give to the agent.
type informer struct {
	cache.SharedIndexInformer
	addDurableHandler func(name string, h cache.ResourceEventHandler) error // nil: there is no such thing.
	status            func() *status                                        // nil: likewise.
	close             func() error
}

// agent is the process that the demonstration kills.
type agent struct {
	options  agentOptions
	begin    time.Time
	meter    meter.Meter
	recorder *recorder
	informer informer
	replay   *replay // nil: events come from the server.

	mu  sync.Mutex
	out *json.Encoder
}

// runAgent works until its stdin ends.
func runAgent(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	var o agentOptions
	if err := o.flags().Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &agent{options: o, out: json.NewEncoder(out)}
	a.recorder = &recorder{say: a.say, since: a.since, quiet: o.Quiet, expect: int64(o.Expect)}
	lw, err := a.listerWatcher(ctx)
	if err != nil {
		a.say(message{Kind: kindError, Error: err.Error()})
		return err
	}

	a.begin = time.Now()
	if err := a.open(lw); err != nil {
		a.say(message{Kind: kindError, Error: err.Error()})
		return err
	}
	var running sync.WaitGroup
	running.Go(func() { a.informer.RunWithContext(ctx) })
	running.Go(func() {
		select {
		case <-a.informer.HasSyncedChecker().Done():
			a.say(message{Kind: kindSynced, Millis: a.since()})
		case <-ctx.Done():
		}
	})
	err = a.obey(in)
	cancel()
	running.Wait()
	return errors.Join(err, a.informer.close())
}

// listerWatcher is the one that a generated client-go informer has.
func (a *agent) listerWatcher(ctx context.Context) (cache.ListerWatcher, error) {
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: a.options.Kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: a.options.Context},
	).ClientConfig()
	if err != nil {
		return nil, err
	}
	if a.options.Dial != "" {
		cfg = link.Attach(cfg, a.options.Dial)
	}
	client, err := kubernetes.NewForConfig(a.meter.Attach(cfg))
	if err != nil {
		return nil, err
	}
	if a.options.Replay > 0 {
		a.replay, err = record(ctx, client, a.options.Namespace, a.options.ReplayFrom, a.options.Replay)
		return a.replay, err
	}
	return podListerWatcher(client, a.options.Namespace), nil
}

// open makes the informer and gives it the handler.
func (a *agent) open(lw cache.ListerWatcher) error {
	var err error
	switch a.options.Impl {
	case implWarmwatch:
		a.informer, err = openWarmwatch(a.options, lw)
	case implClientGo:
		a.informer = informer{
			SharedIndexInformer: cache.NewSharedIndexInformer(lw, &corev1.Pod{}, 0, cache.Indexers{}),
			close:               func() error { return nil },
		}
	default:
		err = fmt.Errorf("unknown implementation %q", a.options.Impl)
	}
	if err != nil {
		return err
	}
	if a.options.Handler == handlerDurable && a.informer.addDurableHandler != nil {
		return a.informer.addDurableHandler("demo", a.recorder)
	}
	_, err = a.informer.AddEventHandler(a.recorder)
	return err
}

func (a *agent) obey(in io.Reader) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		command, argument, _ := strings.Cut(lines.Text(), " ")
		switch command {
		case commandReport:
			a.say(message{Kind: kindReport, Report: a.report()})
		case commandDigest:
			a.say(message{Kind: kindDigest, Digest: a.digest()})
		case commandStream:
			n, err := strconv.Atoi(argument)
			if err != nil {
				return fmt.Errorf("%s: %w", command, err)
			}
			a.recorder.timeStream(n)
			if a.replay != nil {
				a.replay.start()
			}
		default:
			return fmt.Errorf("unknown command %q", command)
		}
	}
	return lines.Err()
}

func (a *agent) report() *report {
	r := &report{
		BytesReceived:   a.meter.BytesReceived(),
		Requests:        a.meter.Requests(),
		Calls:           a.recorder.calls(),
		PeakMemoryBytes: peakMemoryBytes(),
	}
	if a.informer.status != nil {
		r.Status = a.informer.status()
	}
	return r
}

func (a *agent) digest() *digest {
	var pods []*corev1.Pod
	for _, object := range a.informer.GetStore().List() {
		if pod, ok := object.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return digestOf(pods)
}

// say does not fail: without a reader the process ends anyway.
func (a *agent) say(m message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = a.out.Encode(m)
}

func (a *agent) since() float64 { return millis(time.Since(a.begin)) }

// peakMemoryBytes is the largest resident set of this process so far; 0 where the
// system does not tell.
func peakMemoryBytes() int64 {
	content, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(content), "VmHWM:")
	kilobytes, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, _ := strconv.ParseInt(kilobytes, 10, 64) // 0 stands for "unknown".
	return n << 10
}
