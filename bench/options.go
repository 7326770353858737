package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

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

	command string // How a user of make would have asked for it.
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// newFlags is a flag set that is used up to usage.
func newFlags(name, usage string) *flag.FlagSet {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.Usage = func() {
		fmt.Fprintln(set.Output(), usage)
		set.PrintDefaults()
	}
	return set
}

// parseOptions prints the usage. The error is flag.ErrHelp when help was asked for.
func parseOptions(args []string) (o options, err error) {
	set := newFlags("bench", "Measures warmwatch beside client-go, on a real API server.\n\n"+
		"Usage:\n  bench [flags]\n  bench docs [flags]\n  bench figures [flags]\n  bench compare [flags] <git revision>\n\nFlags of bench:")
	set.StringVar(&o.Name, "name", "", "of the result file (default: bench; short with --short)")
	set.StringVar(&o.Out, "out", "results", "directory of result files")
	set.BoolVar(&o.Short, "short", false, "fewer objects, one run of each: less than 3 minutes")
	set.BoolVar(&o.Large, "large", false, "also 200,000 Pods, and 50,000 ConfigMaps and custom resources: hours")
	set.IntVar(&o.Runs, "runs", 0, "how often starts with 50,000 Pods are measured (default 3; 1 with --short); the rest is measured as often, or less")
	set.StringVar(&o.Scenarios, "scenarios", "", "comma-separated parts of the run (default all): "+strings.Join(partNames(), ", "))
	set.StringVar(&o.BinDir, "bin-dir", "", "directory of kube-apiserver and etcd (default: bin/ here or above)")
	set.StringVar(&o.Dir, "dir", "", "where cache files and the control plane's data go; it must exist\n(default: the system's directory for temporary files)")
	set.IntVar(&o.Agents, "agents", 0, "size of the fleet (default 200; 20 with --short)")
	set.IntVar(&o.Objects, "objects", 0, "Pods of all parts but starts and fleet (default 50000; 4000 with --short)")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	o.command = "make bench"
	set.Visit(func(f *flag.Flag) {
		if value := strings.Replace(f.Value.String(), "true", "1", 1); !slices.Contains([]string{"bin-dir", "dir", "out"}, f.Name) {
			o.command += " " + strings.ToUpper(f.Name) + "=" + value
		}
	})
	return o, o.complete(set.Args())
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
	case o.Name != "" && !plainName.MatchString(o.Name):
		return fmt.Errorf("--name=%q: want letters, digits, dots, dashes and underscores", o.Name)
	}
	if o.Name == "" {
		o.Name = "bench"
		if o.Short { // It is not to replace the figures of a long run.
			o.Name = shortName
		}
	}
	if o.Dir != "" {
		if _, err := os.Stat(o.Dir); err != nil {
			return fmt.Errorf("--dir: %w", err)
		}
	}
	for part := range strings.SplitSeq(o.Scenarios, ",") {
		if part != "" && !slices.Contains(partNames(), part) {
			return fmt.Errorf("--scenarios: there is no %q; want some of %s", part, strings.Join(partNames(), ", "))
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
	return nil
}

// has tells whether a part was asked for.
func (o *options) has(part string) bool {
	return o.Scenarios == "" || slices.Contains(strings.Split(o.Scenarios, ","), part)
}

func (o *options) choose(short, long int) int {
	if o.Short {
		return short
	}
	return long
}
