package agent

import (
	"bufio"
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
	"syscall"
	"time"

	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
)

// patience is how long an agent may take for an answer.
const patience = 5 * time.Minute

// Child is an agent process, seen from its parent. Its methods are called from one
// goroutine.
type Child struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	log     tail
	answers chan Message  // Closed when the agent says no more.
	ended   chan struct{} // Closed when the process is gone; waitErr is set before.
	waitErr error

	mu     sync.Mutex
	events []Event
}

// StartChild runs this program as an agent, which ends with the context.
func StartChild(ctx context.Context) (*Child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &Child{answers: make(chan Message, 1), ended: make(chan struct{})}
	c.cmd = exec.CommandContext(ctx, program)
	c.cmd.Env = append(os.Environ(), agentEnv+"=1")
	c.cmd.Stderr = &c.log
	c.cmd.SysProcAttr = controlplane.ProcessAttributes()
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
		c.waitErr = c.cmd.Wait()
		close(c.ended)
	}()
	return c, nil
}

// listen returns when the agent's stdout ends. A killed agent may leave half a line.
func (c *Child) listen(stdout io.Reader) {
	defer close(c.answers)
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var m Message
		if err := json.Unmarshal(line, &m); err != nil {
			m.Error = fmt.Sprintf("not a message: %s", line)
		}
		if m.Event == nil {
			c.answers <- m
			continue
		}
		c.mu.Lock()
		c.events = append(c.events, *m.Event)
		c.mu.Unlock()
	}
}

// Events are all that the agent has reported so far.
func (c *Child) Events() []Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clip(c.events)
}

// Do has the agent do something, and waits for its answer.
func (c *Child) Do(ctx context.Context, command Command) (Message, error) {
	if err := c.Send(command); err != nil {
		return Message{}, err
	}
	return c.Answer(ctx)
}

// Send is Do without the answer.
func (c *Child) Send(command Command) error {
	line, err := json.Marshal(command)
	if err != nil {
		return err
	}
	if _, err := c.stdin.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("agent: %w\n%s", err, c.Log())
	}
	return nil
}

// Answer waits for what comes of Send.
func (c *Child) Answer(ctx context.Context) (Message, error) {
	select {
	case m, ok := <-c.answers:
		if !ok {
			return m, fmt.Errorf("agent: it ended early\n%s", c.Log())
		}
		return m, m.failure()
	case <-ctx.Done():
		return Message{}, context.Cause(ctx)
	case <-time.After(patience):
		return Message{}, fmt.Errorf("agent: no answer within %v\n%s", patience, c.Log())
	}
}

// PID is the process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Signal suspends the agent, and has it go on.
func (c *Child) Signal(s syscall.Signal) error { return c.cmd.Process.Signal(s) }

// Log is the end of what the agent has written to its stderr.
func (c *Child) Log() string { return c.log.String() }

// Kill is kill -9. All that the agent has reported is in Events afterwards. It is fine
// with one that has ended.
func (c *Child) Kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("agent: %w", err)
	}
	for range c.answers { // Lest listen waits for ever.
	}
	<-c.ended
	return nil
}

// Killed reports whether Kill ended it, rather than it itself.
func (c *Child) Killed() bool {
	status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signal() == syscall.SIGKILL
}

// Stop lets the agent end in order.
func (c *Child) Stop() error {
	c.stdin.Close()
	for m := range c.answers {
		if err := m.failure(); err != nil {
			return errors.Join(err, c.Kill())
		}
	}
	<-c.ended
	if c.waitErr != nil {
		return fmt.Errorf("agent: %w\n%s", c.waitErr, c.Log())
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu      sync.Mutex
	content []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	const most = 64 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.content = append(t.content, p...)
	t.content = t.content[max(0, len(t.content)-most):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.content))
}
