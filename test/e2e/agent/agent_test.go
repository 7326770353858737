package agent_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

func TestMain(m *testing.M) {
	agent.Main(agent.Benchmarks{"list": func(b *testing.B, a *agent.Agent) {
		store := a.Informers()[0].GetStore()
		for b.Loop() {
			store.List()
		}
		b.ReportMetric(float64(len(store.List())), "objects")
	}})
	goleak.VerifyTestMain(m)
}

// madeUp is an informer of 100 Pods that are made up.
func madeUp(t *testing.T, impl string) agent.Spec {
	return agent.Spec{
		Impl: impl, Resource: corev1.SchemeGroupVersion.WithResource("pods"), Kind: "Pod", Index: "app",
		File: filepath.Join(t.TempDir(), "cache.db"), Made: 100,
	}
}

func newChild(t *testing.T) *agent.Child {
	t.Helper()
	c, err := agent.StartChild(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Kill(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// do fails the test at the first error.
func do(t *testing.T, c *agent.Child, command agent.Command) agent.Message {
	t.Helper()
	answer, err := c.Do(t.Context(), command)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestChildMeasuresWhatIsExpected(t *testing.T) {
	for _, impl := range []string{agent.ClientGo, agent.Warmwatch} {
		t.Run(impl, func(t *testing.T) {
			c := newChild(t)
			started := do(t, c, agent.Command{
				Start: []agent.Spec{madeUp(t, impl)}, Expect: &agent.Expect{Initial: 100, SampleMemory: true},
				Await: []string{agent.Synced, agent.Delivered, agent.Live}, Report: true,
			}).Report
			updated := do(t, c, agent.Command{
				Expect: &agent.Expect{Updates: 200}, Await: []string{agent.Delivered},
				Benchmark: "list", BenchTime: time.Millisecond, Report: true, Contents: true,
			})
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
			i := started.Informers[0]
			if diff := cmp.Diff(agent.Calls{Initial: 100}, i.Calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if i.Synced.Before(started.Begin) || i.Added.Before(started.Begin) || started.CPU <= 0 || started.SteadyAnon <= 0 {
				t.Errorf("the start: %+v", started)
			}
			i = updated.Report.Informers[0]
			if diff := cmp.Diff(agent.Calls{Updated: 200}, i.Calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if i.DeliveredAll.Before(updated.Report.Begin) {
				t.Errorf("all was delivered at %v, before %v", i.DeliveredAll, updated.Report.Begin)
			}
			if n := len(updated.Contents[0].Objects); n != 100 || updated.Contents[0].IndexErr != "" {
				t.Errorf("%d objects, want 100; index: %s", n, updated.Contents[0].IndexErr)
			}
			if b := updated.Benchmark; b.NanosPerOp <= 0 || b.Extra["objects"] != 100 {
				t.Errorf("benchmark %+v", b)
			}
		})
	}
}

func TestWhatAKilledChildGotCanBeRead(t *testing.T) {
	c := newChild(t)
	spec := madeUp(t, agent.Warmwatch)
	spec.Handlers = []agent.Handler{
		{Name: "durable", Durable: true, Tell: true},
		{Name: "plain", Tell: true, TellInitial: true},
		{Name: "late", Tell: true, TellInitial: true, Late: time.Millisecond},
	}
	do(t, c, agent.Command{Start: []agent.Spec{spec}, Expect: &agent.Expect{Initial: 100}, Await: []string{agent.Delivered, agent.Live}})
	do(t, c, agent.Command{Expect: &agent.Expect{Updates: 50}, Await: []string{agent.Delivered}})
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	delivered := map[string]int{}
	for _, e := range c.Events() {
		delivered[e.Handler]++
	}
	if delivered["durable"] != 50 || delivered["plain"] != 150 {
		t.Errorf("events by handler: %v, want 50 and 150", delivered)
	}
	if _, err := c.Do(t.Context(), agent.Command{Report: true}); err == nil {
		t.Error("a killed agent answers")
	}
}

func TestErrorsOfAChildReachItsParent(t *testing.T) {
	c := newChild(t)
	spec := madeUp(t, agent.Warmwatch)
	spec.File = filepath.Join(t.TempDir(), "no", "such", "directory", "\x00")
	if _, err := c.Do(t.Context(), agent.Command{Start: []agent.Spec{spec}}); err == nil {
		t.Error("an agent whose file cannot be opened has started")
	}
}
