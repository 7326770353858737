// Command bench measures warmwatch beside client-go's informer, on a real API
// server. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/warmwatch/warmwatch/bench/micro"
	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/display"
)

const (
	exitFailed  = 1
	exitUsage   = 2
	exitStopped = 130 // As shells say of a program that Ctrl-C ended.
)

func main() {
	agent.Main(micro.Benchmarks)
	os.Exit(mainExit(os.Args[1:]))
}

func mainExit(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // A second Ctrl-C ends this process at once.
	_, command, err := parse(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v; see --help\n", err)
		return exitUsage
	}
	command.BindTo(ctx, (*context.Context)(nil))
	err = command.Run()
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "bench: stopped")
		return exitStopped
	}
	fmt.Fprintf(os.Stderr, "bench: %v\n", err)
	return exitFailed
}

// Run measures, and writes the result file and its plots.
func (o *options) Run(ctx context.Context) error {
	s, err := newSuite(*o, os.Stdout, os.Stderr)
	if err != nil {
		return err
	}
	f := &result.File{
		Name: o.Name, Commit: commit(ctx), Command: o.command,
		Date: s.screen.begin.UTC().Format(time.RFC3339), Machine: machineFacts(s.dir),
	}
	f.Versions, err = s.run(ctx)
	if f.Rows = s.samples.Rows(); err != nil && (ctx.Err() != nil || len(f.Rows) == 0) {
		return err
	}
	f.Seconds = int(time.Since(s.screen.begin).Seconds())
	f.Skipped, f.Compression = s.skipped, s.compression
	path := filepath.Join(o.Out, o.Name)
	if err2 := f.Write(path + ".json"); err2 != nil {
		return errors.Join(err, err2)
	}
	plots, err2 := report.WritePlots(f, path)
	if err2 != nil {
		return errors.Join(err, err2)
	}
	fmt.Printf("\n%s.json and %d plots in %s written after %s\n", path, len(plots), path, time.Since(s.screen.begin).Round(time.Second))
	return err // Of a part that failed.
}

func thousands(n int) string { return display.Thousands(n) }
