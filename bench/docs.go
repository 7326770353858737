package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
)

// Where the generated documents are, below the root of the repository.
const (
	documentFile = "docs/benchmarks.md"
	plotDir      = "docs/benchmarks"
	readmeFile   = "README.md"
)

// resultFile says which result file a command is about.
type resultFile struct {
	Root string `default:".." help:"Of the repository."`
	Name string `default:"bench" help:"Of a result file in bench/results."`
}

func (r *resultFile) read() (*result.File, error) {
	return result.Read(filepath.Join(r.Root, "bench/results", r.Name+".json"))
}

type figuresCommand struct{ resultFile }

// Run prints every figure.
func (c *figuresCommand) Run() error {
	f, err := c.read()
	if err == nil {
		_, err = fmt.Print(report.Figures(f.Rows))
	}
	return err
}

type docsCommand struct{ resultFile }

// Run generates docs/benchmarks.md, its plots, and the marked section of the README.
func (c *docsCommand) Run() error {
	documents, err := c.generate()
	for file, content := range documents {
		if err := os.WriteFile(filepath.Join(c.Root, file), []byte(content), 0o644); err != nil {
			return err
		}
		fmt.Println(file)
	}
	return err
}

// generate returns all files by their path below the root.
func (c *docsCommand) generate() (documents map[string]string, err error) {
	f, err := c.read()
	if err != nil {
		return nil, err
	}
	readme, err := os.ReadFile(filepath.Join(c.Root, readmeFile))
	if err != nil {
		return nil, err
	}
	documents = map[string]string{}
	if documents[readmeFile], err = report.Readme(string(readme), f); err != nil {
		return nil, err
	}
	plots, err := report.Plots(f)
	if err != nil {
		return nil, err
	}
	for _, p := range plots {
		documents[filepath.Join(plotDir, p.File)] = p.Content
	}
	documents[documentFile], err = report.Document(f, plots)
	return documents, err
}
