package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// shortName is what .gitignore knows the results of short runs by.
const shortName = "short"

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
	Out       string   `default:"results" help:"Directory of result files."`
	Short     bool     `xor:"length" help:"Fewer objects, one run of each: 6 minutes."`
	Large     bool     `xor:"length" help:"Also 200,000 Pods, and 50,000 ConfigMaps and custom resources: hours."`
	Runs      int      `help:"How often starts with 50,000 Pods are measured (default 3; 1 with --short); the rest is measured as often, or less."`
	Scenarios []string `enum:"${parts}" help:"Some parts of the run (default all): ${enum}."`
	Kinds     []string `enum:"plain,varied" help:"Objects that share much text, varied ones as of a real cluster, or both (default): ${enum}."`
	BinDir    string   `help:"Directory of kube-apiserver and etcd (default: bin/ here or above)."`
	Dir       string   `type:"existingdir" help:"Where cache files and the control plane's data go (default: the system's directory for temporary files)."`
	Agents    int      `help:"Size of the fleet (default 200; 20 with --short)."`
	Objects   int      `help:"Pods of all parts but starts and fleet (default 50000; 4000 with --short)."`

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
		if p.Flag != nil && !slices.Contains([]string{"bin-dir", "dir", "out"}, p.Flag.Name) {
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

var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Validate is called by kong.
func (o *options) Validate() error {
	switch {
	case o.Runs < 0:
		return fmt.Errorf("--runs=%d: at least 1 is needed", o.Runs)
	case o.Objects != 0 && o.Objects < 100:
		return fmt.Errorf("--objects=%d: at least 100 are needed", o.Objects)
	case o.Agents < 0:
		return fmt.Errorf("--agents=%d: at least 1 is needed", o.Agents)
	case o.Name != "" && !plainName.MatchString(o.Name):
		return fmt.Errorf("--name=%q: want letters, digits, dots, dashes and underscores", o.Name)
	}
	return nil
}

// complete fills in what was not given.
func (o *options) complete() {
	if o.Name == "" {
		o.Name = "bench"
		if o.Short { // It is not to replace the figures of a long run.
			o.Name = shortName
		}
	}
	for _, n := range []struct {
		value       *int
		short, long int
	}{{&o.Runs, 1, 3}, {&o.Agents, 20, 200}, {&o.Objects, 4000, 50_000}} {
		if *n.value == 0 {
			*n.value = o.choose(n.short, n.long)
		}
	}
}

// has tells whether one of several was asked for; all are by default.
func has(asked []string, one string) bool { return len(asked) == 0 || slices.Contains(asked, one) }

func (o *options) choose(short, long int) int {
	if o.Short {
		return short
	}
	return long
}
