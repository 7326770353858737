// Package result holds the figures of one run of the benchmark: it collects them,
// summarises them, and keeps them in a file.
package result
