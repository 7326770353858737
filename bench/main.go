package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/warmwatch/warmwatch/bench/agent"
	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
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
	command := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	var err error
	switch command {
	case agentCommand:
		if err := agent.Run(ctx, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return exitFailed
		}
		return 0
	case "":
		err = runCommand(ctx, args)
	case "docs":
		err = ofResult(command, args, writeDocs)
	case "figures":
		err = ofResult(command, args, writeFigures)
	case "compare":
		err = compareCommand(ctx, args)
	default:
		err = usageError{fmt.Errorf("unknown command %q; see --help", command)}
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
	}
	var usage usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		return exitUsage
	}
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "bench: stopped")
		return exitStopped
	}
	fmt.Fprintf(os.Stderr, "bench: %v\n", err)
	return exitFailed
}

// usageError was printed already.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func runCommand(ctx context.Context, args []string) error {
	o, err := parseOptions(args, os.Stderr)
	if err != nil {
		return usageError{err}
	}
	return runBench(ctx, o, commandLine(o), os.Stdout, os.Stderr)
}

// commandLine is how a user of make would have asked for it.
func commandLine(o options) string {
	command := "make bench"
	if o.Short {
		command += " SHORT=1"
	}
	if o.Large {
		command += " LARGE=1"
	}
	if o.Name != o.defaultName() {
		command += " NAME=" + o.Name
	}
	if o.Scenarios != "" {
		command += " SCENARIOS=" + o.Scenarios
	}
	if o.Runs != o.choose(1, 3) {
		command += fmt.Sprintf(" RUNS=%d", o.Runs)
	}
	if o.Agents != o.choose(20, 200) {
		command += fmt.Sprintf(" AGENTS=%d", o.Agents)
	}
	if o.Objects != o.choose(4000, 50_000) {
		command += fmt.Sprintf(" OBJECTS=%d", o.Objects)
	}
	return command
}

// runBench measures, and writes the result file and its plots.
func runBench(ctx context.Context, o options, command string, out, progressOut io.Writer) error {
	s, err := newSuite(o, out, progressOut)
	if err != nil {
		return err
	}
	f := &result.File{
		Name: o.Name, Commit: commit(ctx), Command: command,
		Date: s.screen.begin.UTC().Format(time.RFC3339), Machine: machineFacts(s.dir),
	}
	f.Versions, err = s.run(ctx)
	if f.Rows = s.samples.Rows(); err != nil && (ctx.Err() != nil || len(f.Rows) == 0) {
		return err
	}
	f.Seconds = int(time.Since(s.screen.begin).Seconds())
	f.Skipped = s.skipped
	path := filepath.Join(o.Out, o.Name+".json")
	if err2 := f.Write(path); err2 != nil {
		return errors.Join(err, err2)
	}
	plots, err2 := report.WritePlots(f, filepath.Join(o.Out, o.Name))
	if err2 != nil {
		return errors.Join(err, err2)
	}
	fmt.Fprintf(out, "\n%s and %d plots in %s written after %s\n", path, len(plots), filepath.Join(o.Out, o.Name),
		time.Since(s.screen.begin).Round(time.Second))
	return err // Of a part that failed.
}

func thousands(n int) string { return report.Thousands(n) }
