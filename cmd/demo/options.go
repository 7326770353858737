package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

const (
	outputText = "text"
	outputJSON = "json"

	// The scenes change a dozen Pods.
	minObjects = 20
)

// options is the command line.
type options struct {
	Objects    int
	Output     string
	Kubeconfig string
	Context    string
	BinDir     string
	Replayed   int // How many events are replayed from memory; not a flag.
}

// parseOptions prints usage and errors to errOut. The error is flag.ErrHelp when
// help was asked for.
func parseOptions(args []string, errOut io.Writer) (options, error) {
	o := options{Replayed: 100_000}
	set := flag.NewFlagSet("demo", flag.ContinueOnError)
	set.SetOutput(errOut)
	set.IntVar(&o.Objects, "objects", 5000, "how many Pods to create")
	set.StringVar(&o.Output, "output", outputText, "text, or json: one object on stdout and nothing else")
	set.StringVar(&o.Kubeconfig, "kubeconfig", "", "use the cluster of this file, in a namespace of its own\nthat is removed afterwards (default: start a control plane)")
	set.StringVar(&o.Context, "context", "", "context of --kubeconfig (default: its current one)")
	set.StringVar(&o.BinDir, "bin-dir", "", "directory of kube-apiserver and etcd (default: bin/ here or above)")
	set.Usage = func() {
		fmt.Fprintln(errOut, "Shows on a real API server how an informer of warmwatch restarts.\n\nUsage: demo [flags]")
		set.PrintDefaults()
	}
	if err := set.Parse(args); err != nil {
		return o, err
	}
	err := o.validate(set.Args())
	if err != nil {
		fmt.Fprintf(errOut, "demo: %v\n", err)
	}
	return o, err
}

func (o options) validate(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q; see --help", rest[0])
	case o.Objects < minObjects:
		return fmt.Errorf("--objects=%d: at least %d are needed", o.Objects, minObjects)
	case o.Output != outputText && o.Output != outputJSON:
		return fmt.Errorf("--output=%q: want %s or %s", o.Output, outputText, outputJSON)
	case o.Context != "" && o.Kubeconfig == "":
		return errors.New("--context goes with --kubeconfig")
	}
	if o.Kubeconfig != "" {
		if _, err := os.Stat(o.Kubeconfig); err != nil {
			return fmt.Errorf("--kubeconfig: %w", err)
		}
	}
	return nil
}
