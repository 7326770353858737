package micro_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwatch/warmwatch/bench/micro"
	"github.com/warmwatch/warmwatch/bench/result"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// variant is an informer of one implementation; what client-go does not have it
// does without.
type variant struct {
	name string
	o    micro.Options
}

func benchmarkAll(b *testing.B, variants []variant, body func(*testing.B, *micro.Fixture)) {
	for _, objects := range []int{1_000, 10_000} {
		for _, v := range variants {
			o := v.o
			name := fmt.Sprintf("objects=%dk/impl=%s", objects/1000, v.name)
			if o.Handlers > 0 {
				name += fmt.Sprintf("/handlers=%d", o.Handlers)
			}
			b.Run(name, func(b *testing.B) {
				o.Objects, o.Path = objects, filepath.Join(b.TempDir(), "cache.db")
				f, err := micro.New(b.Context(), o)
				if err != nil {
					b.Fatal(err)
				}
				settle(o)
				body(b, f)
				if err := f.Close(); err != nil {
					b.Error(err)
				}
			})
		}
	}
}

// settle lets what was listed be written: what is pending is in memory, whatever
// the budget. How much garbage the start has left decides when the next collection
// comes, which is not what is measured.
func settle(o micro.Options) {
	defer runtime.GC()
	if o.Impl == result.Warmwatch && o.MemoryBudget != 0 {
		time.Sleep(1200 * time.Millisecond)
	}
}

var (
	stock = variant{"client-go", micro.Options{Impl: result.ClientGo}}
	hot   = variant{"warmwatch", micro.Options{Impl: result.Warmwatch, MemoryBudget: -1}}
	cold  = variant{"warmwatch-cold", micro.Options{Impl: result.Warmwatch, MemoryBudget: 1}}
)

func BenchmarkStart(b *testing.B) {
	for _, objects := range []int{1_000, 10_000} {
		for _, v := range []variant{stock, {"warmwatch", micro.Options{Impl: result.Warmwatch}}} {
			b.Run(fmt.Sprintf("objects=%dk/impl=%s", objects/1000, v.name), func(b *testing.B) {
				o := v.o
				o.Objects, o.Path = objects, filepath.Join(b.TempDir(), "cache.db")
				micro.Start(b, o)
			})
		}
	}
}

func BenchmarkGet(b *testing.B)     { benchmarkAll(b, []variant{stock, hot, cold}, micro.Get) }
func BenchmarkByIndex(b *testing.B) { benchmarkAll(b, []variant{stock, hot, cold}, micro.ByIndex) }
func BenchmarkList(b *testing.B)    { benchmarkAll(b, []variant{stock, hot, cold}, micro.List) }
func BenchmarkReaders(b *testing.B) { benchmarkAll(b, []variant{stock, hot}, micro.Readers) }

// BenchmarkEvents is the time for 10,000 updates, until every handler has returned.
func BenchmarkEvents(b *testing.B) {
	var variants []variant
	for _, handlers := range []int{1, 10} {
		for _, v := range []variant{
			{"client-go", micro.Options{Impl: result.ClientGo}},
			{"warmwatch", micro.Options{Impl: result.Warmwatch}},
			{"warmwatch-memory-only", micro.Options{Impl: result.Warmwatch, MemoryOnly: true}},
			{"warmwatch-durable", micro.Options{Impl: result.Warmwatch, Durable: true}},
		} {
			v.o.Handlers = handlers
			variants = append(variants, v)
		}
	}
	benchmarkAll(b, variants, micro.Events)
}

// TestEachBenchmarkRuns needs no figures: it is enough that nothing fails.
func TestEachBenchmarkRuns(t *testing.T) {
	for name, o := range map[string]micro.Options{
		"client-go":   {Impl: result.ClientGo, Handlers: 2},
		"warmwatch":   {Impl: result.Warmwatch, MemoryBudget: 1},
		"memory only": {Impl: result.Warmwatch, MemoryOnly: true},
		"durable":     {Impl: result.Warmwatch, Durable: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.Objects, o.Path = 100, filepath.Join(t.TempDir(), "cache.db")
			f, err := micro.New(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Drain(t.Context(), 500); err != nil {
				t.Error(err)
			}
			if n := len(f.Informer.GetStore().List()); n != 100 {
				t.Errorf("%d objects, want 100", n)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestClockMeasuresEveryUpdate(t *testing.T) {
	c, err := micro.NewClock(t.Context(), micro.Options{Impl: result.ClientGo, Objects: 100})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		millis, err := c.Measure(t.Context(), 200, 2_000)
		if err != nil {
			t.Fatal(err)
		}
		if len(millis) != 200 {
			t.Errorf("%d latencies, want 200", len(millis))
		}
		for _, ms := range millis {
			if ms < 0 || ms > 10_000 {
				t.Errorf("a latency of %v ms", ms)
			}
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
