// Command gotest makes several runs of `go test`, two at a time, and ends with a summary that
// names every skipped test. What it prints of each run, at its end, is what `go test` prints:
// one closing line for each package, and the output of what failed.
//
// A run is an argument: a directory, variables of the environment, then what go test is given.
//
// The form with passes runs the tests of one module many times over, to find those that fail
// now and then.
//
// Usage: gotest [-jobs n] [-flags 'flags of all runs'] 'dir [NAME=value ...] [flags and packages of go test]' ...
//
//	gotest passes [-n passes] [-for duration] [-jobs n] [-tmp dir] [-build flags] dir package ...
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "passes" {
		if err := runPasses(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "#", err)
			os.Exit(1)
		}
		return
	}
	// Ctrl-C reaches the tests as well; this command waits for their end.
	signal.Ignore(os.Interrupt)
	jobs := flag.Int("jobs", 2, "runs at a time")
	flags := flag.String("flags", "", "flags of go test for all runs")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: gotest [-jobs n] [-flags 'flags of all runs'] 'dir [NAME=value ...] [flags and packages of go test]' ...")
		os.Exit(2)
	}
	if !runAll(os.Stdout, *jobs, *flags, flag.Args()) {
		os.Exit(1)
	}
}

// runAll starts the runs in order, some at a time, and prints each as a whole when it ends.
func runAll(out io.Writer, jobs int, flags string, lines []string) (ok bool) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	ok = true
	all, free := newReport(out), make(chan struct{}, jobs)
	for _, line := range lines {
		free <- struct{}{}
		wg.Go(func() {
			var said bytes.Buffer
			r, begin := newReport(&said), time.Now()
			err := r.run(flags, line)
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(out, "# %s (%s, %s of processor time)\n%s", line, time.Since(begin).Round(time.Second), r.used.Round(time.Second), said.String())
			if err != nil {
				fmt.Fprintf(out, "# %s: %v\n", line, err)
				ok = false
			}
			all.passed, all.failed, all.skipped = all.passed+r.passed, all.failed+r.failed, append(all.skipped, r.skipped...)
			<-free
		})
	}
	wg.Wait()
	all.summarize()
	return ok
}

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action, Package, Test, Output string
}

// testID is a package and one of its tests, or "" for the package itself.
type testID struct{ pkg, test string }

// report follows the events of all runs.
type report struct {
	out            io.Writer
	output         map[testID][]string // Of what has not ended yet.
	skipped        []string
	passed, failed int
	used           time.Duration             // Processor time, children included.
	onEnd          func(test, action string) // May be nil.
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[testID][]string{}}
}

func (r *report) run(flags, line string) error {
	words := strings.Fields(line)
	dir, words := words[0], words[1:]
	variables := slices.IndexFunc(words, func(word string) bool { return strings.HasPrefix(word, "-") || !strings.Contains(word, "=") })
	if variables < 0 {
		variables = len(words)
	}
	cmd := exec.Command("go", slices.Concat([]string{"test", "-json"}, strings.Fields(flags), words[variables:])...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), words[:variables]...)
	stdout, err := cmd.StdoutPipe()
	said := &bytes.Buffer{}
	cmd.Stderr = said
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = errors.Join(r.read(stdout), cmd.Wait())
	r.used = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	fmt.Fprint(r.out, said.String())
	return err
}

func (r *report) read(stdout io.Reader) error {
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(r.out, "%s", line) // Not an event: the go command speaks.
			} else {
				r.handle(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) handle(e event) {
	id := testID{e.Package, e.Test}
	switch e.Action {
	case "output":
		r.output[id] = append(r.output[id], e.Output)
		return
	case "build-output":
		fmt.Fprint(r.out, e.Output)
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	if e.Test == "" {
		r.endPackage(id, e.Action)
	} else {
		r.endTest(id, e.Action)
	}
	delete(r.output, id)
}

func (r *report) endTest(id testID, action string) {
	if r.onEnd != nil {
		r.onEnd(id.test, action)
	}
	switch action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
		r.print(r.output[id])
	case "skip":
		r.skipped = append(r.skipped, fmt.Sprintf("%s %s: %s", id.pkg, id.test, skipReason(r.output[id])))
	}
}

// endPackage prints the closing line, and everything else if the package failed:
// a panic is found in the output of a test that never ended.
func (r *report) endPackage(id testID, action string) {
	if action != "fail" {
		for _, line := range r.output[id] {
			if isClosingLine(line) {
				r.print([]string{line})
			}
		}
		return
	}
	for other, lines := range r.output {
		if other.pkg == id.pkg && other.test != "" {
			r.print(lines)
			delete(r.output, other)
		}
	}
	r.print(r.output[id])
}

func isClosingLine(line string) bool {
	return strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "?   \t")
}

func (r *report) print(lines []string) {
	for _, line := range lines {
		if !strings.HasPrefix(line, "=== ") {
			fmt.Fprint(r.out, line)
		}
	}
}

// skipReason is what the test said before it skipped itself.
func skipReason(lines []string) string {
	var said []string
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	if said == nil {
		return "no reason given"
	}
	return strings.Join(said, " ")
}

func (r *report) summarize() {
	fmt.Fprintf(r.out, "# %d tests passed, %d failed, %d skipped\n", r.passed, r.failed, len(r.skipped))
	for _, line := range r.skipped {
		fmt.Fprintf(r.out, "# skipped: %s\n", line)
	}
}
