// Package corrupt attacks cache files: it damages them in every place while nobody
// uses them, and compares what becomes of them with the server (S2, S3, A5, A7, D3).
//
// An image is a cache file, made through the public API, with all that a file can
// have: objects, an index, undelivered deltas of durable handlers, free pages, branch
// pages, values longer than a page.
// A try damages a copy of an image and lives with it, in a process that may die,
// hang or take memory without harm to the others. Each try follows from a seed
// and its number.
//
// `make corrupt` runs many of them, `make test` a few.
package corrupt
