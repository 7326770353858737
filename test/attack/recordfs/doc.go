//go:build !linux || !(amd64 || arm64)

// Package recordfs is for Linux on 64 bits only.
package recordfs
