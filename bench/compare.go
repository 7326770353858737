package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/warmwatch/warmwatch/bench/report"
)

// comparison compares the micro-benchmarks of two revisions: of the working
// directory, and of another one.
type comparison struct {
	revision  string
	benchstat string
	pattern   string
	benchtime string
	count     int
	threshold float64 // Per cent.

	bench       string // Directory of this module.
	dir         string // Temporary.
	out         io.Writer
	progressOut io.Writer
}

var errSlower = errors.New("something got slower")

func compareCommand(ctx context.Context, args []string) error {
	c := comparison{out: os.Stdout, progressOut: os.Stderr}
	set := newFlags("bench compare", "Compares the micro-benchmarks of the working directory with those of another revision.\n\n"+
		"Usage: bench compare [flags] <git revision>")
	set.StringVar(&c.bench, "C", ".", "directory of the benchmark's module")
	set.StringVar(&c.benchstat, "benchstat", "benchstat", "program of golang.org/x/perf/cmd/benchstat")
	set.StringVar(&c.pattern, "bench", "./objects=10k", "which benchmarks, as of go test")
	set.StringVar(&c.benchtime, "benchtime", "200ms", "of each benchmark, as of go test")
	set.IntVar(&c.count, "count", 6, "how often each is run; fewer than 4 show nothing")
	set.Float64Var(&c.threshold, "threshold", 10, "how many per cent slower are too many")
	if err := set.Parse(args); err != nil {
		return usageError{err}
	}
	c.revision = set.Arg(0)
	if err := c.validate(set.NArg()); err != nil {
		return usageError{err}
	}
	return c.run(ctx)
}

func (c *comparison) validate(arguments int) error {
	switch {
	case arguments != 1 || c.revision == "":
		return errors.New("want one git revision to compare with, such as HEAD~1 (make: BASE=HEAD~1)")
	case c.count < 1:
		return fmt.Errorf("--count=%d: at least 1 is needed", c.count)
	}
	return nil
}

func (c *comparison) run(ctx context.Context) (err error) {
	if c.bench, err = filepath.Abs(c.bench); err != nil {
		return err
	}
	base, err := output(ctx, c.bench, "git", "rev-parse", "--verify", "--quiet", c.revision+"^{commit}")
	if err != nil {
		return fmt.Errorf("there is no git revision %q", c.revision)
	}
	if c.dir, err = os.MkdirTemp("", "warmwatch-compare-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(c.dir)) }()
	worktree := filepath.Join(c.dir, "tree")
	if _, err := output(ctx, c.bench, "git", "worktree", "add", "--detach", worktree, base); err != nil {
		return err
	}
	defer func() { // Also after Ctrl-C.
		_, err2 := output(context.WithoutCancel(ctx), c.bench, "git", "worktree", "remove", "--force", worktree)
		err = errors.Join(err, err2)
	}()

	c.tell("building the benchmarks with the library of the working directory and of %.12s", base)
	newTest, baseTest := filepath.Join(c.dir, "new.test"), filepath.Join(c.dir, "base.test")
	if _, err := output(ctx, c.bench, "go", "test", "-c", "-o", newTest, "./micro"); err != nil {
		return err
	}
	if built, err := c.buildBase(ctx, worktree, baseTest); err != nil || !built {
		return err
	}
	if err := c.runBoth(ctx, baseTest, newTest); err != nil {
		return err
	}
	return c.judge(ctx)
}

func (c *comparison) tell(format string, args ...any) {
	fmt.Fprintf(c.progressOut, format+"\n", args...)
}

// buildBase builds the same benchmarks with the other library. If they do not fit
// it, the benchmarks of its own time are taken; it may have none.
func (c *comparison) buildBase(ctx context.Context, worktree, to string) (built bool, err error) {
	mod := filepath.Join(c.dir, "base.mod")
	if err := copyFile(filepath.Join(c.bench, "go.mod"), mod); err != nil {
		return false, err
	}
	if err := copyFile(filepath.Join(c.bench, "go.sum"), filepath.Join(c.dir, "base.sum")); err != nil {
		return false, err
	}
	_, err = output(ctx, c.bench, "go", "mod", "edit",
		"-replace=github.com/warmwatch/warmwatch="+worktree,
		"-replace=github.com/warmwatch/warmwatch/test/e2e="+filepath.Join(c.bench, "..", "test", "e2e"), mod)
	if err != nil {
		return false, err
	}
	_, fitErr := output(ctx, c.bench, "go", "test", "-c", "-mod=mod", "-modfile="+mod, "-o", to, "./micro")
	if fitErr == nil {
		return true, nil
	}
	if ctx.Err() != nil {
		return false, fitErr
	}
	c.tell("the benchmarks do not fit the library of %s, so those of its own time are run:\n%v", c.revision, fitErr)
	own := filepath.Join(worktree, "bench")
	if _, err := os.Stat(filepath.Join(own, "micro")); err != nil {
		fmt.Fprintf(c.out, "%s has no micro-benchmarks: there is nothing to compare with\n", c.revision)
		return false, nil
	}
	_, err = output(ctx, own, "go", "test", "-c", "-o", to, "./micro")
	return err == nil, err
}

// runBoth runs the two in turns, so that what changes on the machine meets both.
func (c *comparison) runBoth(ctx context.Context, baseTest, newTest string) error {
	begin := time.Now()
	for run := range c.count {
		for _, test := range []string{baseTest, newTest} {
			name := strings.TrimSuffix(filepath.Base(test), ".test")
			c.tell("[%5s] run %d of %d: %s", time.Since(begin).Round(time.Second), run+1, c.count, name)
			figures, err := output(ctx, c.dir, test, "-test.run=^$", "-test.bench="+c.pattern, "-test.benchtime="+c.benchtime)
			if err != nil {
				return err
			}
			if !strings.Contains(figures, "\nBenchmark") {
				return fmt.Errorf("%s: no benchmark is called %q", name, c.pattern)
			}
			if err := appendFile(filepath.Join(c.dir, name), figures+"\n"); err != nil {
				return err
			}
		}
	}
	return nil
}

func appendFile(path, text string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(file, text)
	return errors.Join(err, file.Close())
}

// judge prints what benchstat says, and says what got worse.
func (c *comparison) judge(ctx context.Context) error {
	table, err := output(ctx, c.dir, c.benchstat, "base", "new")
	if err != nil {
		return err
	}
	fmt.Fprintln(c.out, table)
	csv, err := output(ctx, c.dir, c.benchstat, "-format=csv", "base", "new")
	if err != nil {
		return err
	}
	changes, err := report.ReadBenchstat(csv)
	if err != nil {
		return err
	}
	slower, noise := report.Slower(changes, c.threshold)
	for _, change := range noise {
		fmt.Fprintf(c.out, "client-go changed too, which it did not: %s; this machine is not quiet\n", change)
	}
	if len(slower) == 0 {
		fmt.Fprintf(c.out, "nothing got worse by more than %v %% (p < 0.05)\n", c.threshold)
		return nil
	}
	fmt.Fprintf(c.out, "worse than %s by more than %v %% (p < 0.05):\n", c.revision, c.threshold)
	for _, change := range slower {
		fmt.Fprintf(c.out, "  %s\n", change)
	}
	return fmt.Errorf("%w: %d figures", errSlower, len(slower))
}

// output runs a command and returns what it prints; an error has its stderr.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, said.String(), out)
	}
	return strings.TrimSpace(string(out)), nil
}
