// Command bench measures warmwatch beside client-go's informer, on a real API
// server. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/warmwatch/warmwatch/bench/micro"
	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/display"
)

func main() {
	agent.Main(micro.Benchmarks)
	os.Exit(agent.Program("bench", func(ctx context.Context) error {
		_, command, err := parse(os.Args[1:])
		if err != nil {
			return fmt.Errorf("%w; %w", err, agent.ErrUsage)
		}
		command.BindTo(ctx, (*context.Context)(nil))
		return command.Run()
	}))
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
