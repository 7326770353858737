package main

import (
	"context"
	"fmt"
)

func compareCommand(_ context.Context, args []string) error { return fmt.Errorf("todo %v", args) }
