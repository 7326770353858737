package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// File is a file of bench/results.
type File struct {
	Name     string            `json:"name"`
	Commit   string            `json:"commit"`
	Command  string            `json:"command"`
	Date     string            `json:"date"` // When the run began.
	Machine  map[string]string `json:"machine"`
	Versions map[string]string `json:"versions"`
	Skipped  []string          `json:"skipped"` // What was not measured, and why.
	// How many times smaller the API server's gzip makes a list, by Key.Kind.
	Compression map[string]float64 `json:"compression,omitempty"`
	Rows        []Row              `json:"rows"`
}

// Row is one figure.
type Row struct {
	Key
	Impl   string  `json:"impl"` // agent.Warmwatch or agent.ClientGo.
	Metric string  `json:"metric"`
	Unit   string  `json:"unit"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Runs   int     `json:"runs"`
}

// Read reads and checks a file.
func Read(path string) (*File, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &File{}
	if err := errors.Join(json.Unmarshal(content, f), f.check()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func (f *File) check() error {
	if f.Name == "" || len(f.Rows) == 0 {
		return errors.New("not a result: no name, or no rows")
	}
	for i, r := range f.Rows {
		known := slices.ContainsFunc(metrics, func(m struct{ name, unit string }) bool { return m.name == r.Metric && m.unit == r.Unit })
		if r.Impl != agent.Warmwatch && r.Impl != agent.ClientGo || !known || r.Scenario == "" {
			return fmt.Errorf("row %d is of another version of this program: %+v", i, r)
		}
	}
	return nil
}

// Write replaces the file.
func (f *File) Write(path string) error {
	head := *f
	head.Rows = []Row{}
	content, err := json.MarshalIndent(head, "", " ")
	if err != nil {
		return err
	}
	var rows []string // One a line: 12 lines for each figure would hide what differs.
	for _, r := range f.Rows {
		row, err := json.MarshalIndent(r, "", "")
		if err != nil {
			return err
		}
		rows = append(rows, "\n  "+strings.ReplaceAll(string(row), "\n", " "))
	}
	text := strings.Replace(string(content), `"rows": []`, `"rows": [`+strings.Join(rows, ",")+"\n ]", 1)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text+"\n"), 0o644)
}
