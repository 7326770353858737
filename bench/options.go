package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// commandLine is everything that this program does.
type commandLine struct {
	Measure options        `cmd:"" default:"withargs" help:"Measure. This is what happens without a command."`
	Docs    docsCommand    `cmd:"" help:"Make docs/benchmarks.md, its plots, and the figures of the README."`
	Figures figuresCommand `cmd:"" help:"Print every figure."`
	Compare comparison     `cmd:"" help:"Compare the micro-benchmarks of the working directory with those of another revision."`
}

// options is the command line of a run.
type options struct {
	Name      string   `help:"Of the result file (default: bench; short with --short)."`
	Short     bool     `help:"Fewer objects, one run of each."`
	Runs      int      `help:"How often all is measured (default 3; 1 with --short)."`
	Scenarios []string `enum:"${parts}" help:"Some parts of the run (default all): ${enum}."`
	BinDir    string   `help:"Directory of kube-apiserver and etcd (default: bin/ here or above)."`

	command string // How a user of make would have asked for it.
}

// parse reads a command line; the result runs what it says.
func parse(args []string) (*commandLine, *kong.Context, error) {
	c := &commandLine{}
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	parser, err := kong.New(c, kong.Name("bench"), kong.Description("Measures warmwatch beside client-go, on a real API server."),
		kong.Vars{"parts": strings.Join(names, ",")})
	if err != nil {
		return nil, nil, err
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return nil, nil, err
	}
	c.Measure.command = "make bench"
	for _, p := range parsed.Path {
		if p.Flag != nil && p.Flag.Name != "bin-dir" {
			value := strings.Trim(fmt.Sprint(p.Flag.Target.Interface()), "[]")
			if p.Flag.IsBool() {
				value = "1"
			}
			c.Measure.command += " " + strings.ToUpper(p.Flag.Name) + "=" + strings.ReplaceAll(value, " ", ",")
		}
	}
	c.Measure.complete()
	return c, parsed, nil
}

// Validate is called by kong.
func (o *options) Validate() error {
	switch {
	case o.Runs < 0:
		return fmt.Errorf("--runs=%d: at least 1 is needed", o.Runs)
	case o.Name != "" && filepath.Base(o.Name) != o.Name:
		return fmt.Errorf("--name=%q: want the name of a file", o.Name)
	}
	return nil
}

// complete fills in what was not given.
func (o *options) complete() {
	if o.Name == "" {
		o.Name = "bench"
		if o.Short { // It is not to replace the figures of a long run.
			o.Name = "short"
		}
	}
	if o.Runs == 0 {
		o.Runs = o.choose(1, 3)
	}
}

// asks tells whether a part was asked for; all are by default.
func (o *options) asks(part string) bool {
	return len(o.Scenarios) == 0 || slices.Contains(o.Scenarios, part)
}

func (o *options) choose(short, long int) int {
	if o.Short {
		return short
	}
	return long
}

// sizes are the numbers of Pods that starts are measured with. The other parts use the largest.
func (o *options) sizes() []int {
	if o.Short {
		return []int{1000, 4000}
	}
	return []int{1000, 10_000, 50_000}
}

func (o *options) largest() int { return slices.Max(o.sizes()) }
