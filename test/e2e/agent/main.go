package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"
)

// agentEnv is set for a program that is to be an agent.
const agentEnv = "WARMWATCH_AGENT"

// Benchmarks by name.
type Benchmarks map[string]func(*testing.B, *Agent)

// Main turns this process into an agent if its parent wants that: then it does not
// return. It is the first thing that a program or a TestMain calls which uses
// StartChild.
func Main(benchmarks Benchmarks) {
	if os.Getenv(agentEnv) == "" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdin, os.Stdout, benchmarks)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// ErrUsage is of arguments that are wrong.
var ErrUsage = errors.New("see --help")

// Program runs a program that uses StartChild until it ends, or is interrupted: its agents end with
// ctx. It prints the error, and returns the exit code: 0, 1, 2 for ErrUsage, or 130 as shells say of
// a program that Ctrl-C ended. A second Ctrl-C ends this process at once.
func Program(name string, run func(ctx context.Context) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	err := run(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintf(os.Stderr, "%s: stopped\n", name)
		return 130
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	if errors.Is(err, ErrUsage) {
		return 2
	}
	return 1
}

// conversation is what is said on stdout.
type conversation struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (c *conversation) say(m Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Encode(m)
}

// tell panics if it cannot: what the parent has not read must not be acknowledged.
func (c *conversation) tell(e *Event) {
	if err := c.say(Message{Event: e}); err != nil {
		panic(err)
	}
}

// run is the whole life of an agent. What it returns the parent has got, too.
func run(ctx context.Context, in io.Reader, out io.Writer, benchmarks Benchmarks) error {
	c := &conversation{out: json.NewEncoder(out)}
	a := New(c.tell)
	err := errors.Join(obey(ctx, a, bufio.NewReader(in), c, benchmarks), a.Stop())
	if err != nil {
		err = errors.Join(err, c.say(Message{Error: err.Error()}))
	}
	return err
}

// obey returns when in ends, or at the first error.
func obey(ctx context.Context, a *Agent, in *bufio.Reader, c *conversation, benchmarks Benchmarks) error {
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		var command Command
		if err := errors.Join(err, json.Unmarshal(line, &command)); err != nil {
			return err
		}
		answer, err := a.do(ctx, command, benchmarks)
		if err != nil {
			return err
		}
		if err := c.say(answer); err != nil {
			return err
		}
	}
}

func (a *Agent) do(ctx context.Context, c Command, benchmarks Benchmarks) (answer Message, err error) {
	switch {
	case c.Start != nil:
		if c.Expect == nil {
			c.Expect = &Expect{}
		}
		err = a.Start(ctx, c.Start, *c.Expect)
	case c.Expect != nil:
		a.Expect(*c.Expect)
	case c.Updates > 0:
		a.expectUpdates(c.Updates)
	}
	if err == nil {
		err = a.Await(ctx, c.Await...)
	}
	if err != nil {
		return answer, err
	}
	time.Sleep(c.Pause)
	if c.Benchmark != "" {
		if answer.Benchmark, err = a.measure(benchmarks[c.Benchmark], c.BenchTime); err != nil {
			return answer, err
		}
	}
	if c.Report {
		answer.Report = a.Report()
	}
	if c.Contents {
		answer.Contents = a.Contents()
	}
	return answer, nil
}

// measure runs a benchmark for about so long.
func (a *Agent) measure(body func(*testing.B, *Agent), benchTime time.Duration) (*Benchmark, error) {
	if flag.Lookup("test.benchtime") == nil {
		testing.Init()
	}
	if err := flag.Set("test.benchtime", benchTime.String()); err != nil {
		return nil, err
	}
	r := testing.Benchmark(func(b *testing.B) { body(b, a) })
	if r.N == 0 {
		return nil, errors.New("the benchmark failed")
	}
	return &Benchmark{NanosPerOp: float64(r.T.Nanoseconds()) / float64(r.N), Extra: r.Extra}, nil
}
