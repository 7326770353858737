package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
)

// Where the generated documents are, below the root of the repository.
const (
	resultsDir   = "bench/results"
	documentFile = "docs/benchmarks.md"
	plotDir      = "docs/benchmarks"
	readmeFile   = "README.md"
)

// resultFile says which result file a command is about.
type resultFile struct {
	Root string `default:".." help:"Of the repository."`
	Name string `help:"Of a result file in bench/results (default: that of the present documents, or the only one)."`
}

type figuresCommand struct{ resultFile }

// Run prints every figure.
func (c *figuresCommand) Run() error {
	path, err := chooseResult(c.Root, c.Name)
	if err != nil {
		return err
	}
	f, err := result.Read(path)
	if err == nil {
		_, err = fmt.Print(report.Figures(f))
	}
	return err
}

type docsCommand struct{ resultFile }

// Run generates docs/benchmarks.md, its plots, and the marked section of the README.
func (c *docsCommand) Run() error {
	path, err := chooseResult(c.Root, c.Name)
	if errors.Is(err, errNoResults) {
		fmt.Println(err)
		return nil
	}
	if err != nil {
		return err
	}
	documents, err := generate(path, c.Root, filepath.Join(c.Root, plotDir))
	for file, content := range documents {
		if err := os.WriteFile(filepath.Join(c.Root, file), []byte(content), 0o644); err != nil {
			return err
		}
		fmt.Println(file)
	}
	return err
}

var errNoResults = fmt.Errorf("there are no result files in %s; `make bench` writes one", resultsDir)

// chooseResult returns the path of the named result, or of the one that there is no
// doubt about.
func chooseResult(root, name string) (string, error) {
	all, err := filepath.Glob(filepath.Join(root, resultsDir, "*.json"))
	if err != nil {
		return "", err
	}
	if name == "" {
		if document, err := os.ReadFile(filepath.Join(root, documentFile)); err == nil {
			name, _ = report.ResultName(string(document))
		}
	}
	// Short runs are for a look; their files are not committed.
	all = slices.DeleteFunc(all, func(path string) bool { return strings.HasPrefix(filepath.Base(path), shortName) })
	switch {
	case name != "":
		return filepath.Join(root, resultsDir, name+".json"), nil
	case len(all) == 0:
		return "", errNoResults
	case len(all) > 1:
		return "", fmt.Errorf("say which: NAME= one of %s", strings.Join(all, ", "))
	}
	return all[0], nil
}

// generate returns the documents by file below root, and writes the plots.
func generate(resultPath, root, plots string) (map[string]string, error) {
	f, err := result.Read(resultPath)
	if err != nil {
		return nil, err
	}
	drawn, err := report.WritePlots(f, plots)
	if err != nil {
		return nil, err
	}
	document, err := report.Document(f, drawn)
	if err != nil {
		return nil, err
	}
	readme, err := os.ReadFile(filepath.Join(root, readmeFile))
	if err != nil {
		return nil, err
	}
	changed, err := report.Readme(string(readme), f)
	return map[string]string{documentFile: document, readmeFile: changed}, err
}
