package display_test

import (
	"testing"

	"github.com/warmwatch/warmwatch/test/e2e/display"
)

func TestValue(t *testing.T) {
	for _, tc := range []struct {
		unit  string
		value float64
		want  string
	}{
		{"ms", 0, "0 ms"},
		{"ms", 1.234567, "1.23 ms"},
		{"ms", 2, "2 ms"},
		{"ms", 1234.5, "1,235 ms"},
		{"ms", 12_345, "12.3 s"},
		{"µs", 0.0421, "42.1 ns"},
		{"µs", 87.6, "87.6 µs"},
		{"B", 999, "999 B"},
		{"B", 172_000_000, "172 MB"},
		{"B", 8.4e9, "8.4 GB"},
		{"1/s", 123_456, "123,456/s"},
		{"1", 505, "505"},
		{"s", 0.0389, "0.0389 s"},
		{"ms", -0.5, "-0.5 ms"},
	} {
		if got := display.Value(tc.unit, tc.value); got != tc.want {
			t.Errorf("%v %s: %q, want %q", tc.value, tc.unit, got, tc.want)
		}
	}
}
