package process

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// HoldProgram is the program "hold" of [Hold]: it holds a file until its input ends.
func HoldProgram([]string) error {
	c, err := warmwatch.Open(context.Background(), os.Getenv("WARMWATCH_TEST_FILE"), warmwatch.Options{})
	if err != nil {
		return err
	}
	if err := c.Status().Err; err != nil {
		return err
	}
	_, _ = os.Stdout.WriteString("held\n")
	_, _ = io.Copy(io.Discard, os.Stdin) // Until the other end is closed.
	return c.Close()
}

// Hold has another process hold a file until release is called.
func Hold(t *testing.T, path string) (release func()) {
	t.Helper()
	cmd := testsupport.Program(t, "hold")
	cmd.Env = append(cmd.Env, "WARMWATCH_TEST_FILE="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the other process: %q, %v", line, err)
	}
	return func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Errorf("the other process: %v", err)
		}
	}
}
