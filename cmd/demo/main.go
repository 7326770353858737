// Command demo shows the main job of warmwatch on a real API server: an agent that
// was killed starts again from its file, resumes the watch where it stopped,
// delivers what it missed, deletions too, and relists with a diff only when the
// server no longer holds the history.
//
// The demonstration starts kube-apiserver and etcd, or uses the cluster of
// --kubeconfig, and creates, changes and deletes Pods. The agents that it kills with
// -9 are this program too: see test/e2e/agent. In every scene one with warmwatch plays
// first, then one with a stock client-go informer, on the same server in the same
// state.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

func main() {
	agent.Main(nil)
	os.Exit(agent.Program("demo", func(ctx context.Context) error {
		o, err := parseOptions(os.Args[1:])
		if err != nil {
			return fmt.Errorf("%w; %w", err, agent.ErrUsage)
		}
		ok, err := runDemo(ctx, o, os.Stdout, os.Stderr)
		if err == nil && !ok {
			err = errors.New("not every scene did what it says")
		}
		return err
	}))
}

// runDemo plays every scene, or only keeps the server up until ctx is done, and cleans up behind itself. It tells
// whether each scene did what it says.
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
	c, err := openCluster(ctx, o)
	defer func() { err = errors.Join(err, c.close(screen.tell)) }()
	if err != nil {
		return false, err
	}
	if o.Serve {
		_, err := fmt.Fprintf(out, "export KUBECONFIG=%s\n# kube-apiserver %s runs until Ctrl-C; its namespace %s is empty.\n", c.kubeconfig, c.version, c.namespace)
		<-ctx.Done()
		return true, err
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

// demo is the stage.
type demo struct {
	options options
	cluster *cluster
	dir     string // Of cache files.
	changes *changes
	result  *result
	screen  *screen
}

func (d *demo) fill(ctx context.Context) error {
	d.screen.tell("creating %s Pods in namespace %s", thousands(d.options.Objects), d.cluster.namespace)
	err := workload.FillPods(ctx, d.cluster.config, d.cluster.namespace, d.options.Objects, d.screen.progress("created"))
	if err != nil {
		return fmt.Errorf("creating Pods: %w", err)
	}
	pods, err := d.cluster.pods(ctx)
	d.changes = &changes{cluster: d.cluster, pods: pods, created: d.options.Objects}
	return err
}

func (d *demo) playAll(ctx context.Context) error {
	for i, script := range scripts {
		s := &scene{Name: script.name, Title: script.title}
		d.result.Scenes = append(d.result.Scenes, s)
		d.screen.heading(i+1, s.Title)
		if err := d.play(ctx, script, s); err != nil {
			return fmt.Errorf("scene %s: %w", s.Name, err)
		}
		d.screen.scene(s)
	}
	d.result.OK = !slices.ContainsFunc(d.result.Scenes, func(s *scene) bool { return !s.ok() })
	return nil
}
