package e2e

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// agentProcess is a process that is killed.
type agentProcess struct {
	*agent.Child
	begun bool // It has said so.
}

// startAgent does not wait until the agent has begun: it may be killed before.
func startAgent(t *testing.T, specs ...agent.Spec) *agentProcess {
	t.Helper()
	child, err := agent.StartChild(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	a := &agentProcess{Child: child}
	t.Cleanup(func() {
		if err := a.Kill(); err != nil {
			t.Error(err)
		}
	})
	if err := a.Send(agent.Command{Start: specs}); err != nil {
		t.Fatal(err)
	}
	return a
}

// contents is what is in the agent's stores.
func (a *agentProcess) contents(t *testing.T) []agent.Contents {
	t.Helper()
	if !a.begun {
		if _, err := a.Answer(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.begun = true
	}
	answer, err := a.Do(t.Context(), agent.Command{Contents: true})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Contents
}

// kill is kill -9. The agent must not have ended by itself.
func (a *agentProcess) kill(t *testing.T) {
	t.Helper()
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	if !a.Killed() || strings.Contains(a.Log(), "DATA RACE") {
		t.Fatalf("the agent ended by itself:\n%s", a.Log())
	}
}

// end lets the agent end in order.
func (a *agentProcess) end(t *testing.T) {
	t.Helper()
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
}

// specOf is an informer of ours, with an index over a label that never changes. So
// little is kept in memory that most is read from the file.
func specOf(resource schema.GroupVersionResource, kind string) agent.Spec {
	return agent.Spec{
		Impl: agent.Warmwatch, Resource: resource, Kind: kind, Index: "third", MemoryBudget: 64 << 10, Wrapped: true,
	}
}

// deliveryOf is what a handler in an agent got.
func deliveryOf(e agent.Event) delivery {
	kind := map[string]string{"ADDED": "add", "MODIFIED": "update", "DELETED": "delete"}[e.Change.Type]
	switch {
	case e.Initial:
		kind = "initial"
	case e.Change.Tombstone:
		kind = "lost"
	}
	return delivery{Kind: kind, Key: e.Key, Old: e.Old, New: e.New, Marked: e.Change.Marked}
}
