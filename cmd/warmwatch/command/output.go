package command

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"sigs.k8s.io/yaml"
)

// A format is a value of the flag --output.
type format string

const (
	formatTable format = "table"
	formatWide  format = "wide"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
	formatName  format = "name"
)

var formats = []string{string(formatTable), string(formatWide), string(formatJSON), string(formatYAML), string(formatName)}

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	if !slices.Contains(formats, s) {
		return fmt.Errorf("it is one of %s", strings.Join(formats, ", "))
	}
	*f = format(s)
	return nil
}

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "format" }

// An output is what a verb prints.
type output struct {
	value  any      // For json and yaml.
	names  []string // For name.
	tables []table  // For table and wide. Without tables these are yaml.
}

// A table has a header unless that is nil.
type table struct {
	header []string
	rows   [][]string
	wide   int // How many of the last columns only wide has.
}

func (t *table) add(row ...string) { t.rows = append(t.rows, row) }

func (o *output) print(w io.Writer, f format) error {
	switch {
	case f == formatJSON:
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(o.value)
	case f == formatName:
		for _, name := range o.names {
			if _, err := fmt.Fprintln(w, name); err != nil {
				return err
			}
		}
		return nil
	case f == formatYAML || o.tables == nil:
		b, err := yaml.Marshal(o.value)
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	}
	tabs := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	separator := ""
	for _, t := range o.tables {
		if len(t.rows) == 0 {
			continue
		}
		fmt.Fprint(tabs, separator)
		separator = "\n"
		t.print(tabs, f == formatWide)
	}
	return tabs.Flush()
}

// print writes to a buffer of tabwriter, whose Flush returns the error.
func (t *table) print(w io.Writer, wide bool) {
	for _, row := range slices.Concat([][]string{t.header}, t.rows) {
		if !wide && t.wide > 0 && row != nil {
			row = row[:len(row)-t.wide]
		}
		if row != nil {
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
	}
}

// sizeOf is a number of bytes, for people.
func sizeOf(n int64) string {
	const units = "KMGT"
	size, unit := float64(n), -1
	for size >= 1000 && unit < len(units)-1 {
		size, unit = size/1024, unit+1
	}
	if unit < 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %ciB", size, units[unit])
}

func timeOf(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
