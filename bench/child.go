package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/warmwatch/warmwatch/bench/agent"
)

// agentCommand is the hidden subcommand: each measured process is this program.
const agentCommand = "agent"

// patience is how long an agent may take until it says something.
const patience = 5 * time.Minute

// child is an agent process, seen from its parent. Its methods are called from one
// goroutine.
type child struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	heard   chan agent.Message // Closed when the agent says no more.
	logTail *tail
}

// startChild runs an agent that ends with the context.
func startChild(ctx context.Context, s agent.Spec) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{heard: make(chan agent.Message), logTail: &tail{}}
	c.cmd = exec.CommandContext(ctx, program, agentCommand)
	c.cmd.Stderr = c.logTail
	c.cmd.SysProcAttr = processAttributes()
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	go c.listen(stdout)
	spec, err := json.Marshal(s)
	if err == nil {
		err = c.say(string(spec))
	}
	if err != nil {
		return nil, errors.Join(err, c.kill())
	}
	return c, nil
}

// listen returns when the agent's stdout ends.
func (c *child) listen(stdout io.Reader) {
	defer close(c.heard)
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var m agent.Message
		if err := json.Unmarshal(line, &m); err != nil {
			m.Error = fmt.Sprintf("not a message: %s", line)
		}
		c.heard <- m
	}
}

// next waits for the agent's next message.
func (c *child) next(ctx context.Context) (agent.Message, error) {
	select {
	case m, ok := <-c.heard:
		if !ok {
			return m, fmt.Errorf("agent: it ended early\n%s", c.logTail)
		}
		if m.Error != "" {
			return m, fmt.Errorf("agent: %s", m.Error)
		}
		return m, nil
	case <-ctx.Done():
		return agent.Message{}, context.Cause(ctx)
	case <-time.After(patience):
		return agent.Message{}, fmt.Errorf("agent: silent for %v\n%s", patience, c.logTail)
	}
}

// awaitReady expects a message without figures.
func (c *child) awaitReady(ctx context.Context) error {
	m, err := c.next(ctx)
	if err == nil && !m.Ready {
		err = fmt.Errorf("agent: said %+v, want ready", m)
	}
	return err
}

// skippedError says why an agent has no figures.
type skippedError string

func (e skippedError) Error() string { return string(e) }

// awaitFigures expects a message with figures.
func (c *child) awaitFigures(ctx context.Context) (map[string]float64, error) {
	m, err := c.next(ctx)
	switch {
	case err == nil && m.Skipped != "":
		err = skippedError(m.Skipped)
	case err == nil && m.Figures == nil:
		err = fmt.Errorf("agent: said %+v, want figures", m)
	}
	return m.Figures, err
}

func (c *child) say(words ...any) error {
	if _, err := fmt.Fprintln(c.stdin, words...); err != nil {
		return fmt.Errorf("agent: %w\n%s", err, c.logTail)
	}
	return nil
}

func (c *child) signal(s syscall.Signal) error { return c.cmd.Process.Signal(s) }

// finish lets the agent end, and waits for that.
func (c *child) finish() error {
	c.stdin.Close()
	for m := range c.heard {
		if m.Error != "" {
			return errors.Join(fmt.Errorf("agent: %s", m.Error), c.kill())
		}
	}
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("agent: %w\n%s", err, c.logTail)
	}
	return nil
}

// kill ends it in any case. It is fine with one that has ended.
func (c *child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("agent: %w", err)
	}
	c.stdin.Close()
	for range c.heard { // Lest listen waits for ever.
	}
	_ = c.cmd.Wait() // "signal: killed" is what it says.
	return nil
}

// tail keeps the end of what is written to it.
type tail struct{ content []byte }

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	const most = 4 << 10
	t.content = append(t.content, p...)
	t.content = t.content[max(0, len(t.content)-most):]
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.content)) }
