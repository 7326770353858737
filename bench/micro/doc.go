// Package micro measures informers without a server: events and objects come from
// memory, decoded. Its tests are ordinary benchmarks, which compare two revisions
// (`make bench-compare`); the benchmark program runs the same functions.
package micro
