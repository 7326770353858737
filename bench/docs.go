package main

import (
	"fmt"
)

func docsCommand(args []string) error { return fmt.Errorf("todo %v", args) }
