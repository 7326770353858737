package controlplane

import (
	"context"
	"fmt"
	"os"
)

// Tests is what [testing.M] has of tests.
type Tests interface{ Run() int }

// Suite runs Tests while a ControlPlane runs, which all of them share. It is Tests itself,
// for what looks for goroutines that are left when all has stopped.
type Suite struct {
	Tests  Tests
	Shared **ControlPlane
}

// Run starts the ControlPlane, runs the tests and stops it. It returns the exit code.
func (s Suite) Run() int {
	var err error
	if *s.Shared, err = Start(context.Background(), Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := s.Tests.Run()
	if err := (*s.Shared).Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
