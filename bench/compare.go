package main

import (
	"context"
	"errors"
	"fmt"
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
	Revision  string  `arg:"" help:"Git revision to compare with, such as HEAD~1 (make: BASE=HEAD~1)."`
	Chdir     string  `short:"C" default:"." type:"existingdir" help:"Directory of the benchmark's module."`
	Benchstat string  `default:"benchstat" help:"Program of golang.org/x/perf/cmd/benchstat."`
	Bench     string  `default:"./objects=10k" help:"Which benchmarks, as of go test."`
	Benchtime string  `default:"200ms" help:"Of each benchmark, as of go test."`
	Count     uint    `default:"6" help:"How often each is run; fewer than 4 show nothing."`
	Threshold float64 `default:"10" help:"How many per cent slower are too many."`

	dir string // Temporary.
}

var errSlower = errors.New("something got slower")

// Run builds the benchmarks with both libraries, runs them, and says what got slower.
func (c *comparison) Run(ctx context.Context) (err error) {
	base, err := output(ctx, c.Chdir, "git", "rev-parse", "--verify", "--quiet", c.Revision+"^{commit}")
	if err != nil {
		return fmt.Errorf("there is no git revision %q", c.Revision)
	}
	if c.dir, err = os.MkdirTemp("", "warmwatch-compare-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(c.dir)) }()
	worktree := filepath.Join(c.dir, "tree")
	if _, err := output(ctx, c.Chdir, "git", "worktree", "add", "--detach", worktree, base); err != nil {
		return err
	}
	defer func() { // Also after Ctrl-C.
		_, err2 := output(context.WithoutCancel(ctx), c.Chdir, "git", "worktree", "remove", "--force", worktree)
		err = errors.Join(err, err2)
	}()

	c.tell("building the benchmarks with the library of the working directory and of %.12s", base)
	newTest, baseTest := filepath.Join(c.dir, "new.test"), filepath.Join(c.dir, "base.test")
	if _, err := output(ctx, c.Chdir, "go", "test", "-c", "-o", newTest, "./micro"); err != nil {
		return err
	}
	if built, err := c.buildBase(ctx, worktree, baseTest); err != nil || !built {
		return err
	}
	if err := c.runBoth(ctx, "base", "new"); err != nil {
		return err
	}
	return c.judge(ctx)
}

func (c *comparison) tell(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// buildBase builds the same benchmarks with the other library. If they do not fit
// it, the benchmarks of its own time are taken; it may have none.
func (c *comparison) buildBase(ctx context.Context, worktree, to string) (built bool, err error) {
	mod := filepath.Join(c.dir, "base.mod")
	if err := copyFile(filepath.Join(c.Chdir, "go.mod"), mod); err != nil {
		return false, err
	}
	if err := copyFile(filepath.Join(c.Chdir, "go.sum"), filepath.Join(c.dir, "base.sum")); err != nil {
		return false, err
	}
	_, err = output(ctx, c.Chdir, "go", "mod", "edit",
		"-replace=github.com/warmwatch/warmwatch="+worktree,
		"-replace=github.com/warmwatch/warmwatch/test/e2e="+filepath.Join(c.Chdir, "..", "test", "e2e"), mod)
	if err != nil {
		return false, err
	}
	_, fitErr := output(ctx, c.Chdir, "go", "test", "-c", "-mod=mod", "-modfile="+mod, "-o", to, "./micro")
	if fitErr == nil {
		return true, nil
	}
	if ctx.Err() != nil {
		return false, fitErr
	}
	c.tell("the benchmarks do not fit the library of %s, so those of its own time are run:\n%v", c.Revision, fitErr)
	own := filepath.Join(worktree, "bench")
	if _, err := os.Stat(filepath.Join(own, "micro")); err != nil {
		fmt.Printf("%s has no micro-benchmarks: there is nothing to compare with\n", c.Revision)
		return false, nil
	}
	_, err = output(ctx, own, "go", "test", "-c", "-o", to, "./micro")
	return err == nil, err
}

// runBoth runs the two in turns, so that what changes on the machine meets both.
func (c *comparison) runBoth(ctx context.Context, tests ...string) error {
	begin := time.Now()
	for run := range c.Count {
		for _, test := range tests {
			c.tell("[%5s] run %d of %d: %s", time.Since(begin).Round(time.Second), run+1, c.Count, test)
			figures, err := output(ctx, c.dir, "./"+test+".test", "-test.run=^$", "-test.bench="+c.Bench, "-test.benchtime="+c.Benchtime)
			if err != nil {
				return err
			}
			if !strings.Contains(figures, "\nBenchmark") {
				return fmt.Errorf("%s: no benchmark is called %q", test, c.Bench)
			}
			before, err := os.ReadFile(filepath.Join(c.dir, test))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			if err := os.WriteFile(filepath.Join(c.dir, test), append(before, figures+"\n"...), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// judge prints what benchstat says, and says what got worse.
func (c *comparison) judge(ctx context.Context) error {
	table, err := output(ctx, c.dir, c.Benchstat, "base", "new")
	if err != nil {
		return err
	}
	fmt.Println(table)
	csv, err := output(ctx, c.dir, c.Benchstat, "-format=csv", "base", "new")
	if err != nil {
		return err
	}
	changes, err := report.ReadBenchstat(csv)
	if err != nil {
		return err
	}
	slower, noise := report.Slower(changes, c.Threshold)
	for _, change := range noise {
		fmt.Printf("client-go changed too, which it did not: %s; this machine is not quiet\n", change)
	}
	if len(slower) == 0 {
		fmt.Printf("nothing got worse by more than %v %% (p < 0.05)\n", c.Threshold)
		return nil
	}
	fmt.Printf("worse than %s by more than %v %% (p < 0.05):\n", c.Revision, c.Threshold)
	for _, change := range slower {
		fmt.Printf("  %s\n", change)
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
