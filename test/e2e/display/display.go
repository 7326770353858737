// Package display writes figures for people.
package display

import (
	"fmt"
	"math"
	"strconv"
)

// Value has three significant digits. Units are ms, µs, s, B, 1/s and 1.
func Value(unit string, v float64) string {
	switch unit {
	case "ms":
		if v >= 10_000 {
			return number(v/1000) + " s"
		}
		return number(v) + " ms"
	case "µs":
		if v < 1 {
			return number(v*1000) + " ns"
		}
		return number(v) + " µs"
	case "B":
		return sizeText(v)
	case "1/s":
		return number(v) + "/s"
	case "1":
		return number(v)
	}
	return number(v) + " " + unit
}

func sizeText(v float64) string {
	switch {
	case v >= 1e9:
		return number(v/1e9) + " GB"
	case v >= 1e6:
		return number(v/1e6) + " MB"
	case v >= 1e3:
		return number(v/1e3) + " kB"
	}
	return number(v) + " B"
}

// number has three significant digits; of large numbers, all before the point.
func number(v float64) string {
	if v == 0 {
		return "0"
	}
	digits := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	if rounded := math.Round(v); digits == 0 {
		return Thousands(int(rounded))
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	if whole := strconv.FormatFloat(v, 'f', -1, 64); len(whole) < len(text) {
		return whole // 2, not 2.00.
	}
	return text
}

// Thousands separates groups of digits.
func Thousands(n int) string {
	if n < 0 {
		return "-" + Thousands(-n)
	}
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", Thousands(n/1000), n%1000)
}

// Ratio is how many times better.
func Ratio(r float64) string { return number(r) + "×" }
