package micro_test

import (
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/bench/micro"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

func TestMain(m *testing.M) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard) // benchstat reads what is printed.
	goleak.VerifyTestMain(m)
}

// variant is an informer of one implementation; what client-go does not have it
// does without.
type variant struct {
	name     string
	impl     string
	handlers int // 0: one, and the name does not say so.
	change   func(*agent.Spec)
}

var (
	stock = variant{name: "client-go", impl: agent.ClientGo}
	warm  = variant{name: "warmwatch", impl: agent.Warmwatch}
	hot   = variant{name: "warmwatch", impl: agent.Warmwatch, change: func(s *agent.Spec) { s.MemoryBudget = -1 }}
	cold  = variant{name: "warmwatch-cold", impl: agent.Warmwatch, change: func(s *agent.Spec) { s.MemoryBudget = 1 }}
)

// spec is that of a variant; its file does not exist yet.
func (v variant) spec(tb testing.TB, objects int) agent.Spec {
	s := micro.Spec(v.impl, filepath.Join(tb.TempDir(), "cache.db"), objects)
	for i := range max(v.handlers, 1) {
		s.Handlers = append(s.Handlers, agent.Handler{Name: fmt.Sprintf("bench-%d", i)})
	}
	if v.change != nil {
		v.change(&s)
	}
	return s
}

// start starts an informer, and waits until its handlers know all objects.
func start(tb testing.TB, s agent.Spec) *agent.Agent {
	tb.Helper()
	a := agent.New(nil)
	err := a.Start(tb.Context(), []agent.Spec{s}, agent.Expect{Initial: max(s.Made, len(s.Source.Keys()))})
	if err == nil {
		err = a.Await(tb.Context(), agent.Synced, agent.Delivered)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

func stop(tb testing.TB, a *agent.Agent) {
	tb.Helper()
	if err := a.Stop(); err != nil {
		tb.Error(err)
	}
}

// eachVariant runs body for each number of objects.
func eachVariant(b *testing.B, variants []variant, body func(b *testing.B, v variant, objects int)) {
	for _, objects := range []int{1_000, 10_000} {
		for _, v := range variants {
			name := fmt.Sprintf("objects=%dk/impl=%s", objects/1000, v.name)
			if v.handlers > 0 {
				name += fmt.Sprintf("/handlers=%d", v.handlers)
			}
			b.Run(name, func(b *testing.B) { body(b, v, objects) })
		}
	}
}

func benchmarkAll(b *testing.B, variants []variant, measure func(*testing.B, *agent.Agent)) {
	eachVariant(b, variants, func(b *testing.B, v variant, objects int) {
		s := v.spec(b, objects)
		a := start(b, s)
		// What was listed is to be written: what is pending is in memory, whatever the budget.
		if s.Impl == agent.Warmwatch && s.MemoryBudget != 0 {
			time.Sleep(1200 * time.Millisecond)
		}
		// How much garbage the start has left decides when the next collection comes,
		// which is not what is measured.
		runtime.GC()
		measure(b, a)
		stop(b, a)
	})
}

// BenchmarkStart is the time from opening the cache until a handler has heard of all
// objects, and to close it again. warmwatch finds its file filled.
func BenchmarkStart(b *testing.B) {
	eachVariant(b, []variant{stock, warm}, func(b *testing.B, v variant, objects int) {
		s := v.spec(b, objects)
		s.Source, s.Made = agent.NewSource(objects), 0
		stop(b, start(b, s))
		for b.Loop() {
			stop(b, start(b, s))
		}
	})
}

// BenchmarkHandlers is the time until handlers that are added to a running informer at once
// have been notified of 20,000 Pods.
func BenchmarkHandlers(b *testing.B) {
	for _, v := range []variant{stock, {"warmwatch-hot", hot.impl, 0, hot.change}, cold} {
		s := v.spec(b, 0)
		s.Source = agent.NewSource(20_000)
		a := start(b, s)
		time.Sleep(1200 * time.Millisecond) // What was listed is to be written.
		for _, handlers := range []int{1, 10, 30} {
			b.Run(fmt.Sprintf("handlers=%d/impl=%s", handlers, v.name), func(b *testing.B) {
				runtime.GC()
				micro.Handlers(b, a, handlers)
			})
		}
		stop(b, a)
	}
}

func BenchmarkGet(b *testing.B)     { benchmarkAll(b, []variant{stock, hot, cold}, micro.Get) }
func BenchmarkByIndex(b *testing.B) { benchmarkAll(b, []variant{stock, hot, cold}, micro.ByIndex) }
func BenchmarkList(b *testing.B)    { benchmarkAll(b, []variant{stock, hot, cold}, micro.List) }
func BenchmarkReaders(b *testing.B) { benchmarkAll(b, []variant{stock, hot}, micro.Readers) }

func memoryOnly(s *agent.Spec) { s.MemoryOnly = true }

func durable(s *agent.Spec) {
	for i := range s.Handlers {
		s.Handlers[i].Durable = true
	}
}

// BenchmarkEvents is the time for 10,000 updates, until every handler has returned.
func BenchmarkEvents(b *testing.B) {
	var variants []variant
	for _, handlers := range []int{1, 10} {
		for _, v := range []variant{
			stock, warm, {"warmwatch-memory-only", agent.Warmwatch, 0, memoryOnly}, {"warmwatch-durable", agent.Warmwatch, 0, durable},
		} {
			v.handlers = handlers
			variants = append(variants, v)
		}
	}
	benchmarkAll(b, variants, micro.Events)
}

// TestEachVariantIsNotifiedOfEveryUpdate needs no figures: it is enough that nothing fails.
func TestEachVariantIsNotifiedOfEveryUpdate(t *testing.T) {
	for _, v := range []variant{
		{"client-go", agent.ClientGo, 2, nil}, cold, {"memory only", agent.Warmwatch, 1, memoryOnly}, {"durable", agent.Warmwatch, 1, durable},
	} {
		t.Run(v.name, func(t *testing.T) {
			a := start(t, v.spec(t, 100))
			if err := a.Drain(t.Context(), 500); err != nil {
				t.Error(err)
			}
			if got := a.Report().Informers[0].Calls.Updated; got != 500 {
				t.Errorf("notified of %d updates, want 500", got)
			}
			if n := len(a.Informers()[0].GetStore().List()); n != 100 {
				t.Errorf("%d objects, want 100", n)
			}
			stop(t, a)
		})
	}
}
