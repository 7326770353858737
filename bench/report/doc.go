// Package report turns a result file into documents: tables, plots, and the part
// of the README that has figures.
package report
