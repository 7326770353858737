//go:build !linux

package main

// evict is for Linux only.
func evict(string) error { return skippedError("only Linux removes a file from the page cache") }
