package micro

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// batch is how many events one turn of a benchmark of events has.
const batch = 10_000

// Start is the time from opening the cache until a handler has heard of all
// objects, and to close it again. warmwatch finds its file filled.
func Start(b *testing.B, o Options) {
	source := NewSource(o.Objects)
	start := func() {
		f, err := newFixture(b.Context(), o, source, nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
	start()
	for b.Loop() {
		start()
	}
}

// Get is the time to get one of all objects, in random order.
func Get(b *testing.B, f *Fixture) {
	keys := f.Source.Keys()
	store := f.Informer.GetStore()
	random := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		if _, exists, err := store.GetByKey(keys[random.IntN(len(keys))]); err != nil || !exists {
			b.Fatalf("exists %t, error %v", exists, err)
		}
	}
}

// ByIndex is the time to get the 50 objects of one of all index values.
func ByIndex(b *testing.B, f *Fixture) {
	values := f.Informer.GetIndexer().ListIndexFuncValues(IndexApp)
	random := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		found, err := f.Informer.GetIndexer().ByIndex(IndexApp, values[random.IntN(len(values))])
		if err != nil || len(found) == 0 {
			b.Fatalf("%d objects, error %v", len(found), err)
		}
	}
}

// List is the time to list everything.
func List(b *testing.B, f *Fixture) {
	want := len(f.Source.Keys())
	for b.Loop() {
		if all := f.Informer.GetStore().List(); len(all) != want {
			b.Fatalf("%d objects, want %d", len(all), want)
		}
	}
}

// Events is the time for updates, until all handlers have returned. It reports
// events a second, and processor time for each.
func Events(b *testing.B, f *Fixture) {
	before := cpuTime()
	for b.Loop() {
		if err := f.Drain(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	events := float64(b.N) * batch
	b.ReportMetric(events/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/events, "cpu-ns/event")
	b.ReportMetric(b.Elapsed().Seconds()*1e9/events, "ns/event")
}

// Readers is the time for updates while four readers get objects as fast as they
// can. It reports events and Gets a second.
func Readers(b *testing.B, f *Fixture) {
	const readers = 4
	keys := f.Source.Keys()
	store := f.Informer.GetStore()
	var gets atomic.Int64
	var failed atomic.Bool
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range uint64(readers) {
		running.Go(func() {
			random := rand.New(rand.NewPCG(1, i))
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, exists, err := store.GetByKey(keys[random.IntN(len(keys))]); err != nil || !exists {
					failed.Store(true)
				}
				gets.Add(1)
			}
		})
	}
	for b.Loop() {
		if err := f.Drain(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	elapsed := b.Elapsed().Seconds()
	got := gets.Load()
	close(stop)
	running.Wait()
	if failed.Load() {
		b.Error("an object was missing")
	}
	b.ReportMetric(float64(b.N)*batch/elapsed, "events/s")
	b.ReportMetric(float64(got)/elapsed, "gets/s")
}

// cpuTime is what the process has used: on a shared machine a steadier measure
// than the time that has passed.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
