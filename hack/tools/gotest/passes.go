package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// cpus are the values of GOMAXPROCS that a test is run with, each of which is a pass.
const cpus = "1,2,4"

// passes runs the tests of a module many times: each run of a package's tests is a process
// that makes a pass for each of cpus, in random order and with -short.
type passes struct {
	number int
	limit  time.Duration // After it no further process is started; 0 is no limit.
	jobs   int           // Processes at a time.
	tmp    string        // Directory for the files of the tests. A file system in memory is faster.

	mu       sync.Mutex
	out      io.Writer
	packages map[string]*counts
	failed   map[string]int // By package and test.
}

// counts are of one package.
type counts struct{ passes, tests, failures, processes, failedProcesses int }

// program is the test binary of a package.
type program struct{ pkg, dir, path string }

func runPasses(args []string) error {
	p := passes{out: os.Stdout}
	set := flag.NewFlagSet("gotest passes", flag.ExitOnError)
	set.IntVar(&p.number, "n", 500, "how often to run each test")
	set.DurationVar(&p.limit, "for", 0, "begin no further pass after this time; 0 is no limit")
	set.IntVar(&p.jobs, "jobs", 1, "processes at a time")
	set.StringVar(&p.tmp, "tmp", "", "where the tests have their files; the default is that of the system")
	flags := set.String("build", "", "flags of go test -c")
	_ = set.Parse(args) // It exits.
	if set.NArg() < 2 {
		return errors.New("expected a directory and packages")
	}
	// Ctrl-C ends the run with what it has counted; it reaches the tests as well.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return p.run(ctx, set.Arg(0), strings.Fields(*flags), set.Args()[1:])
}

func (p *passes) run(ctx context.Context, dir string, flags, packages []string) error {
	bin, err := os.MkdirTemp("", "gotest")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	programs, err := build(dir, bin, flags, packages)
	if err != nil {
		return err
	}
	p.packages, p.failed = map[string]*counts{}, map[string]int{}
	begin, each := time.Now(), strings.Count(cpus, ",")+1
	next := make(chan program)
	var wg sync.WaitGroup
	for range p.jobs {
		wg.Go(func() {
			for program := range next {
				p.try(ctx, program, each)
			}
		})
	}
	for made := 0; made < p.number && ctx.Err() == nil && (p.limit == 0 || time.Since(begin) < p.limit); made += each {
		for _, program := range programs { // Side by side, so that a run that is ended has all.
			next <- program
		}
	}
	close(next)
	wg.Wait()
	return p.summarize(time.Since(begin))
}

// build makes the test binaries of the packages that have tests.
func build(dir, bin string, flags, packages []string) ([]program, error) {
	const format = "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}"
	list := exec.Command("go", append([]string{"list", "-f", format}, packages...)...)
	list.Dir, list.Stderr = dir, os.Stderr
	lines, err := list.Output()
	if err != nil {
		return nil, err
	}
	var programs []program
	for line := range strings.Lines(string(lines)) {
		pkg, pkgDir, _ := strings.Cut(strings.TrimSpace(line), " ")
		path := filepath.Join(bin, fmt.Sprintf("%d.test", len(programs)))
		cmd := exec.Command("go", slices.Concat([]string{"test", "-c", "-o", path}, flags, []string{pkg})...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w", pkg, err)
		}
		programs = append(programs, program{pkg, pkgDir, path})
	}
	return programs, nil
}

// try runs a package's tests in one process, unless ctx is done. What failed is printed at
// once.
func (p *passes) try(ctx context.Context, program program, each int) {
	if ctx.Err() != nil {
		return
	}
	tmp, err := os.MkdirTemp(p.tmp, "gotest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer os.RemoveAll(tmp)
	cmd := exec.Command("go", "tool", "test2json", "-p", program.pkg, program.path,
		"-test.v=test2json", "-test.short", "-test.shuffle=on", "-test.cpu="+cpus, "-test.timeout=30m")
	cmd.Dir = program.dir
	// The race detector's second of sleep before the exit is as long as many packages' tests.
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "GORACE="+strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0"))
	var output, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &said
	err = cmd.Run()
	if ctx.Err() != nil {
		return // The tests were interrupted.
	}
	r := newReport(&said)
	tests, failures := 0, map[string]int{}
	r.onEnd = func(test, action string) {
		if strings.Contains(test, "/") {
			return
		}
		tests++
		if action == "fail" {
			failures[test]++
		}
	}
	err = errors.Join(err, r.read(&output))
	if err != nil && len(failures) == 0 {
		failures["the process"] = 1
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count(program.pkg, tests, failures, each, err)
	if err != nil {
		fmt.Fprintf(p.out, "# %s: %v\n%s", program.pkg, err, said.String())
	}
}

func (p *passes) count(pkg string, tests int, failures map[string]int, each int, err error) {
	c := p.packages[pkg]
	if c == nil {
		c = &counts{}
		p.packages[pkg] = c
	}
	c.processes++
	c.tests += tests
	for test, n := range failures {
		c.failures += n
		p.failed[pkg+" "+test] += n
	}
	if err != nil {
		c.failedProcesses++ // It may have ended before its passes.
	} else {
		c.passes += each
	}
}

func (p *passes) summarize(took time.Duration) error {
	total := 0
	for _, pkg := range slices.Sorted(maps.Keys(p.packages)) {
		c := p.packages[pkg]
		fmt.Fprintf(p.out, "# %s: %d passes, %d tests run, %d failures; %d of %d processes failed\n",
			pkg, c.passes, c.tests, c.failures, c.failedProcesses, c.processes)
		total += c.failedProcesses
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.failed), func(a, b string) int {
		return cmp.Or(cmp.Compare(p.failed[b], p.failed[a]), cmp.Compare(a, b))
	}) {
		fmt.Fprintf(p.out, "# failed %d times: %s\n", p.failed[name], name)
	}
	fmt.Fprintf(p.out, "# %s, GOMAXPROCS %s\n", took.Round(time.Second), cpus)
	if total > 0 {
		return fmt.Errorf("%d processes failed", total)
	}
	return nil
}
