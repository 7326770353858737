//go:build !linux

package main

import "errors"

// processors are those that a process may run on.
type processors struct{}

var errNoAffinity = errors.New("only Linux can tell a process where to run")

func halves() (first, second processors, err error) { return first, second, errNoAffinity }

func (p processors) and(processors) processors { return p }

func (p processors) confine(int) error { return errNoAffinity }

func cpuModel() string { return "" }
