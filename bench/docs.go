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

// ofResult runs a command that is about a result file. Without any it says so.
func ofResult(command string, args []string, run func(path, root string) error) error {
	set := newFlags("bench "+command, "Usage: bench "+command+" [flags]")
	root := set.String("root", "..", "of the repository")
	name := set.String("name", "", "of a result file in "+resultsDir+" (default: that of the present documents, or the only one)")
	if err := set.Parse(args); err != nil {
		return usageError{err}
	}
	if set.NArg() > 0 {
		return usageError{fmt.Errorf("unexpected argument %q; see --help", set.Arg(0))}
	}
	path, err := chooseResult(*root, *name)
	if errors.Is(err, errNoResults) {
		fmt.Println(err)
		return nil
	}
	if err != nil {
		return err
	}
	return run(path, *root)
}

// writeFigures prints every figure.
func writeFigures(path, _ string) error {
	f, err := result.Read(path)
	if err == nil {
		_, err = fmt.Print(report.Figures(f))
	}
	return err
}

// writeDocs generates docs/benchmarks.md, its plots, and the marked section of
// the README.
func writeDocs(path, root string) error {
	documents, err := generate(path, root, filepath.Join(root, plotDir))
	if err != nil {
		return err
	}
	for file, content := range documents {
		if err := os.WriteFile(filepath.Join(root, file), []byte(content), 0o644); err != nil {
			return err
		}
		fmt.Println(file)
	}
	return nil
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
