package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// The parts of a run, in their order.
const (
	partStarts     = "starts"
	partRelist     = "relist"
	partEvents     = "events"
	partUpdates    = "updates"
	partFromMemory = "from-memory"
	partReads      = "reads"
	partFleet      = "fleet"
)

var allParts = []string{partStarts, partRelist, partEvents, partUpdates, partFromMemory, partReads, partFleet}

// shortName is what .gitignore knows the results of short runs by.
const shortName = "short"

// options is the command line of a run.
type options struct {
	Name      string
	Out       string // Directory of result files.
	Short     bool
	Large     bool
	Runs      int
	Scenarios string
	BinDir    string
	Dir       string // Of cache files. Empty: a temporary one.
	Agents    int    // Of the fleet.
	Objects   int    // Pods of the parts that are measured at one size.

	parts []string
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// parseOptions prints usage and errors to errOut. The error is flag.ErrHelp when
// help was asked for.
func parseOptions(args []string, errOut io.Writer) (options, error) {
	var o options
	set := flag.NewFlagSet("bench", flag.ContinueOnError)
	set.SetOutput(errOut)
	set.StringVar(&o.Name, "name", "", "of the result file (default: bench; short with --short)")
	set.StringVar(&o.Out, "out", "results", "directory of result files")
	set.BoolVar(&o.Short, "short", false, "fewer objects, one run of each: less than 3 minutes")
	set.BoolVar(&o.Large, "large", false, "also 200,000 Pods, and 50,000 ConfigMaps and custom resources: hours")
	set.IntVar(&o.Runs, "runs", 0, "how often starts with 50,000 Pods are measured (default 3; 1 with --short); the rest is measured as often, or less")
	set.StringVar(&o.Scenarios, "scenarios", "", "comma-separated parts of the run (default all): "+strings.Join(allParts, ", "))
	set.StringVar(&o.BinDir, "bin-dir", "", "directory of kube-apiserver and etcd (default: bin/ here or above)")
	set.StringVar(&o.Dir, "dir", "", "where cache files and the control plane's data go; it must exist\n(default: the system's directory for temporary files)")
	set.IntVar(&o.Agents, "agents", 0, "size of the fleet (default 200; 20 with --short)")
	set.IntVar(&o.Objects, "objects", 0, "Pods of all parts but starts and fleet (default 50000; 4000 with --short)")
	set.Usage = func() {
		fmt.Fprintln(errOut, "Measures warmwatch beside client-go, on a real API server.\n\n"+
			"Usage:\n  bench [flags]\n  bench docs [flags]\n  bench figures [flags]\n  bench compare [flags] <git revision>\n\nFlags of bench:")
		set.PrintDefaults()
	}
	if err := set.Parse(args); err != nil {
		return o, err
	}
	err := o.complete(set.Args())
	if err != nil {
		fmt.Fprintf(errOut, "bench: %v\n", err)
	}
	return o, err
}

// complete checks what was given, and fills in what was not.
func (o *options) complete(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q; see --help", rest[0])
	case o.Short && o.Large:
		return errors.New("--short and --large exclude each other")
	case o.Runs < 0:
		return fmt.Errorf("--runs=%d: at least 1 is needed", o.Runs)
	case o.Objects != 0 && o.Objects < 100:
		return fmt.Errorf("--objects=%d: at least 100 are needed", o.Objects)
	case o.Agents < 0:
		return fmt.Errorf("--agents=%d: at least 1 is needed", o.Agents)
	}
	if o.Name == "" {
		o.Name = o.defaultName()
	}
	if !plainName.MatchString(o.Name) {
		return fmt.Errorf("--name=%q: want letters, digits, dots, dashes and underscores", o.Name)
	}
	if o.Runs == 0 {
		o.Runs = o.choose(1, 3)
	}
	if o.Agents == 0 {
		o.Agents = o.choose(20, 200)
	}
	if o.Objects == 0 {
		o.Objects = o.choose(4000, 50_000)
	}
	if o.Dir != "" {
		if _, err := os.Stat(o.Dir); err != nil {
			return fmt.Errorf("--dir: %w", err)
		}
	}
	o.parts = allParts
	if o.Scenarios != "" {
		o.parts = strings.Split(o.Scenarios, ",")
	}
	for _, part := range o.parts {
		if !slices.Contains(allParts, part) {
			return fmt.Errorf("--scenarios: there is no %q; want some of %s", part, strings.Join(allParts, ", "))
		}
	}
	return nil
}

func (o *options) has(part string) bool { return slices.Contains(o.parts, part) }

func (o *options) choose(short, long int) int {
	if o.Short {
		return short
	}
	return long
}

// defaultName keeps a short run from replacing the figures of a long one.
func (o *options) defaultName() string {
	if o.Short {
		return shortName
	}
	return "bench"
}
