package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

const (
	exitFailed  = 1
	exitUsage   = 2
	exitStopped = 130 // As shells say of a program that Ctrl-C ended.
)

func main() {
	os.Exit(mainExit(os.Args[1:]))
}

func mainExit(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		stop() // A second Ctrl-C ends this process at once.
	}()
	if len(args) > 0 && args[0] == agentCommand {
		if err := runAgent(ctx, args[1:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return exitFailed
		}
		return 0
	}

	o, err := parseOptions(args, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return exitUsage
	}
	ok, err := runDemo(ctx, o, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
	}
	switch {
	case ctx.Err() != nil:
		return exitStopped
	case err != nil || !ok:
		return exitFailed
	}
	return 0
}

// runDemo plays every scene and cleans up behind itself. It tells whether each did
// what it says.
func runDemo(ctx context.Context, o options, out, progressOut io.Writer) (ok bool, err error) {
	screen := &screen{out: out, progressOut: progressOut}
	if o.Output == outputJSON {
		screen.out = io.Discard
	}
	dir, err := os.MkdirTemp("", "warmwatch-demo-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	if o.Kubeconfig == "" {
		screen.tell("starting kube-apiserver and etcd")
	}
	c, err := openCluster(ctx, o, dir)
	defer func() { err = errors.Join(err, c.close(screen.tell)) }()
	if err != nil {
		return false, err
	}
	d := &demo{options: o, cluster: c, dir: dir, screen: screen, result: newResult(o.Objects, c.version)}
	if err := d.fill(ctx); err != nil {
		return false, err
	}
	if err := d.playAll(ctx); err != nil {
		return false, err
	}
	if o.Output == outputJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return d.result.OK, encoder.Encode(d.result)
	}
	screen.summary(d.result)
	return d.result.OK, nil
}

func (d *demo) fill(ctx context.Context) error {
	d.screen.tell("creating %s Pods in namespace %s", thousands(d.options.Objects), d.cluster.namespace)
	err := workload.FillPods(ctx, d.cluster.config, d.cluster.namespace, d.options.Objects, d.screen.progress("created"))
	if err != nil {
		return fmt.Errorf("creating Pods: %w", err)
	}
	pods, _, err := podsOf(ctx, d.cluster.client, d.cluster.namespace)
	d.changes = &changes{cluster: d.cluster, pods: pods, created: d.options.Objects}
	return err
}

func (d *demo) playAll(ctx context.Context) error {
	for i, script := range d.scripts() {
		s := &scene{Name: script.name, Title: script.title}
		d.result.Scenes = append(d.result.Scenes, s)
		d.screen.heading(i+1, s.Title)
		if err := script.play(ctx, s); err != nil {
			return fmt.Errorf("scene %s: %w", s.Name, err)
		}
		d.screen.scene(s)
	}
	d.screen.tell("measuring streams of events")
	if err := d.measureStreams(ctx); err != nil {
		return fmt.Errorf("streams: %w", err)
	}
	d.result.OK = d.result.allTrue()
	d.result.Figures = d.result.figures()
	return nil
}
