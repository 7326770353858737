package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// File is a file of bench/results.
type File struct {
	Name     string            `json:"name"`
	Commit   string            `json:"commit"`
	Command  string            `json:"command"`
	Date     string            `json:"date"`    // When the run began.
	Seconds  int               `json:"seconds"` // How long it took.
	Machine  map[string]string `json:"machine"`
	Versions map[string]string `json:"versions"`
	Skipped  []string          `json:"skipped"` // What was not measured, and why.
	Rows     []Row             `json:"rows"`
}

// Row is one figure.
type Row struct {
	Scenario string  `json:"scenario"`
	Kind     string  `json:"kind"`
	Objects  int     `json:"objects"`
	Impl     string  `json:"impl"`
	Metric   string  `json:"metric"`
	Unit     string  `json:"unit"`
	Median   float64 `json:"median"`
	Min      float64 `json:"min"`
	Max      float64 `json:"max"`
	Runs     int     `json:"runs"`
}

// Read reads and checks a file.
func Read(path string) (*File, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &File{}
	if err := json.Unmarshal(content, f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func (f *File) check() error {
	if f.Name == "" || len(f.Rows) == 0 {
		return errors.New("not a result: no name, or no rows")
	}
	for i, r := range f.Rows {
		if !slices.Contains(Impls, r.Impl) || r.Unit != Unit(r.Metric) || r.Unit == "" || r.Scenario == "" {
			return fmt.Errorf("row %d is of another version of this program: %+v", i, r)
		}
	}
	return nil
}

// Write replaces the file.
func (f *File) Write(path string) error {
	content, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// One row a line: 12 lines for each figure would hide what differs.
	text := string(content)
	for _, unfold := range []struct{ from, to string }{{"\n   ", " "}, {"\n  }", " }"}} {
		head, rows, _ := strings.Cut(text, "\n \"rows\": [")
		text = head + "\n \"rows\": [" + strings.ReplaceAll(rows, unfold.from, unfold.to)
	}
	return os.WriteFile(path, []byte(text+"\n"), 0o644)
}

// Find returns a row.
func (f *File) Find(scenario, kind string, objects int, impl, metric string) (Row, bool) {
	for _, r := range f.Rows {
		if r.Scenario == scenario && r.Kind == kind && r.Objects == objects && r.Impl == impl && r.Metric == metric {
			return r, true
		}
	}
	return Row{}, false
}
