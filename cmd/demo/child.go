package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// patience is how long an agent may take for anything.
const patience = 3 * time.Minute

// child is an agent process, seen from its parent. Its methods are called from one
// goroutine.
type child struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	logPath string
	ended   chan struct{} // Closed when the process is gone and all it said is read.

	mu      sync.Mutex
	changed chan struct{} // Closed and replaced whenever the agent says something.
	said    said
}

// said is what an agent has said so far.
type said struct {
	SyncedMillis *float64 // nil: not yet.
	AddedMillis  *float64
	Events       []event
	reports      int // How many reports and digests there were.
	digests      int
	report       *report
	digest       *digest
	stream       *stream
	failure      string
}

// startChild runs an agent whose stderr is appended to logPath.
func startChild(o agentOptions, logPath string) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // The agent has its own descriptor.
	c := &child{
		cmd:     exec.Command(program, o.args()...),
		logPath: logPath,
		ended:   make(chan struct{}),
		changed: make(chan struct{}),
	}
	c.cmd.Stderr = log
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
	go func() {
		c.listen(stdout)
		_ = c.cmd.Wait() // "signal: killed" is how agents end here.
		close(c.ended)
	}()
	return c, nil
}

// listen returns when the agent's stdout ends.
func (c *child) listen(stdout io.Reader) {
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			m = message{Kind: kindError, Error: fmt.Sprintf("not a message: %s", bytes.TrimSpace(line))}
		}
		c.hear(m)
	}
}

func (c *child) hear(m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m.Kind {
	case kindSynced:
		c.said.SyncedMillis = &m.Millis
	case kindAdded:
		c.said.AddedMillis = &m.Millis
	case kindEvent:
		c.said.Events = append(c.said.Events, *m.Event)
	case kindReport:
		c.said.reports++
		c.said.report = m.Report
	case kindDigest:
		c.said.digests++
		c.said.digest = m.Digest
	case kindStream:
		c.said.stream = m.Stream
	case kindError:
		c.said.failure = m.Error
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// heard returns what was said so far, and a channel that closes when there is more.
func (c *child) heard() (said, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.said
	s.Events = slices.Clone(s.Events)
	return s, c.changed
}

// await waits until the agent has said enough. The error names what was awaited.
func (c *child) await(ctx context.Context, what string, enough func(said) bool) (said, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	for {
		s, more := c.heard()
		if s.failure != "" {
			return s, fmt.Errorf("agent: %s", s.failure)
		}
		if enough(s) {
			return s, nil
		}
		select {
		case <-more:
		case <-c.ended:
			return s, fmt.Errorf("agent: it ended before %s\n%s", what, c.logTail())
		case <-ctx.Done():
			return s, fmt.Errorf("agent: waiting for %s: %w\n%s", what, context.Cause(ctx), c.logTail())
		}
	}
}

// ask sends a command.
func (c *child) ask(command string, arguments ...any) error {
	_, err := fmt.Fprintln(c.stdin, append([]any{command}, arguments...)...)
	if err != nil {
		return fmt.Errorf("agent: %w\n%s", err, c.logTail())
	}
	return nil
}

// report asks for the agent's figures.
func (c *child) report(ctx context.Context) (*report, error) {
	before, _ := c.heard()
	if err := c.ask(commandReport); err != nil {
		return nil, err
	}
	s, err := c.await(ctx, "its report", func(s said) bool { return s.reports > before.reports })
	return s.report, err
}

// digest asks for the digest of the agent's cache.
func (c *child) digest(ctx context.Context) (*digest, error) {
	before, _ := c.heard()
	if err := c.ask(commandDigest); err != nil {
		return nil, err
	}
	s, err := c.await(ctx, "the digest of its cache", func(s said) bool { return s.digests > before.digests })
	return s.digest, err
}

// awaitStatus asks for reports until warmwatch's status is as wanted.
func (c *child) awaitStatus(ctx context.Context, what string, enough func(*status) bool) (*status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	for {
		r, err := c.report(ctx)
		if err != nil {
			return nil, err
		}
		if r.Status != nil && enough(r.Status) {
			return r.Status, nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return nil, fmt.Errorf("agent: waiting for %s: %w; status: %+v", what, err, r.Status)
		}
	}
}

// kill is kill -9.
func (c *child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("agent: %w", err)
	}
	<-c.ended
	return nil
}

func (c *child) logTail() string {
	const lines = 15
	content, err := os.ReadFile(c.logPath)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimSpace(content)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// sleep returns the cause when the context ends before the time is over.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
