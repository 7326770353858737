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

// Run measures, and writes the result file.
func (o *options) Run(ctx context.Context) error {
	s, err := newSuite(*o, os.Stdout, os.Stderr)
	if err != nil {
		return err
	}
	f := &result.File{
		Name: o.Name, Commit: commit(ctx), Command: o.command,
		Date: s.screen.begin.UTC().Format(time.RFC3339), Machine: machineFacts(ctx, s.dir), Compression: s.compression,
	}
	f.Versions, err = s.run(ctx)
	if f.Rows = s.samples.Rows(); err != nil && (ctx.Err() != nil || len(f.Rows) == 0) {
		return err
	}
	f.Skipped = s.skipped
	path := filepath.Join("results", o.Name+".json")
	if err2 := f.Write(path); err2 != nil {
		return errors.Join(err, err2)
	}
	fmt.Printf("\n%s written after %s\n", path, time.Since(s.screen.begin).Round(time.Second))
	return err // Of a part that failed.
}

func thousands(n int) string { return display.Thousands(n) }
