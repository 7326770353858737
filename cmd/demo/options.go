package main

import (
	"errors"
	"fmt"

	"github.com/alecthomas/kong"
)

const (
	outputText = "text"
	outputJSON = "json"

	// The scenes change a dozen Pods.
	minObjects = 20
)

// options is the command line.
type options struct {
	Objects    int    `default:"5000" help:"How many Pods to create."`
	Output     string `default:"text" enum:"text,json" help:"text, or json: one object on stdout and nothing else."`
	Kubeconfig string `type:"existingfile" help:"Use the cluster of this file, in a namespace of its own that is removed afterwards (default: start a control plane)."`
	Context    string `help:"Context of --kubeconfig (default: its current one)."`
	BinDir     string `help:"Directory of kube-apiserver and etcd (default: bin/ here or above)."`
	Serve      bool   `help:"Only start a control plane, and keep it up until Ctrl-C."`
}

func parseOptions(args []string) (options, error) {
	var o options
	parser, err := kong.New(&o, kong.Name("demo"), kong.Description("Shows on a real API server how an informer of warmwatch restarts."))
	if err == nil {
		_, err = parser.Parse(args)
	}
	return o, err
}

// Validate is called by kong.
func (o *options) Validate() error {
	switch {
	case o.Objects < minObjects:
		return fmt.Errorf("--objects=%d: at least %d are needed", o.Objects, minObjects)
	case o.Context != "" && o.Kubeconfig == "":
		return errors.New("--context goes with --kubeconfig")
	case o.Serve && o.Kubeconfig != "":
		return errors.New("--serve starts a control plane, --kubeconfig uses one")
	}
	return nil
}
