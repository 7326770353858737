// Command gotest runs `go test` in several modules and ends with a summary that
// names every skipped test. What it prints of each run is what `go test` prints:
// one closing line for each package, and the output of what failed.
//
// The form with passes runs the tests of one module many times over, to find those that fail
// now and then.
//
// Usage: gotest [flags of go test] -- dir ...
//
//	gotest passes [-n passes] [-for duration] [-jobs n] [-tmp dir] [-build flags] dir package ...
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
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
	split := slices.Index(os.Args, "--")
	if split < 0 || split == len(os.Args)-1 {
		fmt.Fprintln(os.Stderr, "usage: gotest [flags of go test] -- dir ...")
		os.Exit(2)
	}
	flags, dirs := os.Args[1:split], os.Args[split+1:]
	r := newReport(os.Stdout)
	failed := false
	for _, dir := range dirs {
		fmt.Printf("# %s: go test %s ./...\n", dir, strings.Join(flags, " "))
		if err := r.run(dir, flags); err != nil {
			fmt.Fprintf(os.Stderr, "# %s: %v\n", dir, err)
			failed = true
		}
	}
	r.summarize()
	if failed {
		os.Exit(1)
	}
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
	onEnd          func(test, action string) // May be nil.
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[testID][]string{}}
}

func (r *report) run(dir string, flags []string) error {
	cmd := exec.Command("go", slices.Concat([]string{"test", "-json"}, flags, []string{"./..."})...)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	return errors.Join(r.read(stdout), cmd.Wait())
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
