// Package micro measures informers without a server: events and objects come from
// memory, decoded. Its tests are ordinary benchmarks, which compare two revisions
// (`make bench-compare`); the benchmark program has agents run the same functions.
package micro

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// batch is how many events one turn of a benchmark of events has.
const batch = 10_000

// indexApp is the index over the label of that name.
const indexApp = "app"

// Spec is an informer of so many Pods that come from memory.
func Spec(impl, file string, objects int) agent.Spec {
	return agent.Spec{
		Impl: impl, Resource: corev1.SchemeGroupVersion.WithResource("pods"), Kind: "Pod", Index: indexApp,
		File: file, Made: objects,
	}
}

// Benchmarks are those that agents run, by name.
var Benchmarks = agent.Benchmarks{"Get": Get, "ByIndex": ByIndex, "List": List}

// Get is the time to get one of all objects, in random order.
func Get(b *testing.B, a *agent.Agent) {
	informer := a.Informers()[0]
	keys, store := informer.Source.Keys(), informer.GetStore()
	random := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		if _, exists, err := store.GetByKey(keys[random.IntN(len(keys))]); err != nil || !exists {
			b.Fatalf("exists %t, error %v", exists, err)
		}
	}
}

// ByIndex is the time to get the 50 objects of one of all index values.
func ByIndex(b *testing.B, a *agent.Agent) {
	indexer := a.Informers()[0].GetIndexer()
	values := indexer.ListIndexFuncValues(indexApp)
	random := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		found, err := indexer.ByIndex(indexApp, values[random.IntN(len(values))])
		if err != nil || len(found) == 0 {
			b.Fatalf("%d objects, error %v", len(found), err)
		}
	}
}

// List is the time to list everything.
func List(b *testing.B, a *agent.Agent) {
	informer := a.Informers()[0]
	want := len(informer.Source.Keys())
	for b.Loop() {
		if all := informer.GetStore().List(); len(all) != want {
			b.Fatalf("%d objects, want %d", len(all), want)
		}
	}
}

// Handlers is the time until so many handlers, which are added at once, have been notified of
// all objects.
func Handlers(b *testing.B, a *agent.Agent, handlers int) {
	informer := a.Informers()[0]
	objects := len(informer.Source.Keys())
	for b.Loop() {
		var delivered sync.WaitGroup
		added := make([]cache.ResourceEventHandlerRegistration, handlers)
		for i := range added {
			delivered.Add(objects)
			var err error
			if added[i], err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { delivered.Done() }}); err != nil {
				b.Fatal(err)
			}
		}
		delivered.Wait()
		b.StopTimer()
		for _, registration := range added {
			if err := informer.RemoveEventHandler(registration); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
	}
}

// Events is the time for updates, until all handlers have returned. It reports
// events a second, and processor time for each.
func Events(b *testing.B, a *agent.Agent) {
	before := agent.CPUTime()
	for b.Loop() {
		if err := a.Drain(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	events := float64(b.N) * batch
	b.ReportMetric(events/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((agent.CPUTime()-before).Nanoseconds())/events, "cpu-ns/event")
	b.ReportMetric(b.Elapsed().Seconds()*1e9/events, "ns/event")
}

// Readers is the time for updates while four readers get objects as fast as they
// can. It reports events and Gets a second.
func Readers(b *testing.B, a *agent.Agent) {
	const readers = 4
	keys, store := a.Informers()[0].Source.Keys(), a.Informers()[0].GetStore()
	var gets atomic.Int64
	var failed, stop atomic.Bool
	var running sync.WaitGroup
	for i := range uint64(readers) {
		running.Go(func() {
			random := rand.New(rand.NewPCG(1, i))
			for !stop.Load() {
				if _, exists, err := store.GetByKey(keys[random.IntN(len(keys))]); err != nil || !exists {
					failed.Store(true)
				}
				gets.Add(1)
			}
		})
	}
	for b.Loop() {
		if err := a.Drain(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	elapsed := b.Elapsed().Seconds()
	got := gets.Load()
	stop.Store(true)
	running.Wait()
	if failed.Load() {
		b.Error("an object was missing")
	}
	b.ReportMetric(float64(b.N)*batch/elapsed, "events/s")
	b.ReportMetric(float64(got)/elapsed, "gets/s")
}
