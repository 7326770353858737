package faults_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

var backlogUpdates = flag.Int("backlog.updates", 20_000, "updates of TestAHandlerThatHangsDoesNotFillTheDisk; 200000 is what was reported")

var backlogBytes = flag.Int64("backlog.bytes", 0, "MaxBacklogBytes of that test; 0: 12 KB for each object")

// TestAHandlerThatHangsDoesNotFillTheDisk: what waits for it is bounded by the number of
// objects. It prints what the file and the heap take.
func TestAHandlerThatHangsDoesNotFillTheDisk(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		updates := testsupport.Rounds(*backlogUpdates, 6000)
		objects := min(1000, updates/100)
		content := strings.Repeat("x", 3<<10)
		f := source.New(t)
		for i := range objects {
			f.Put(source.ConfigMap(fmt.Sprint("o", i), content))
		}
		path := testsupport.Path(t)
		const tail = 24 << 20 // What waits in the tail, and just behind it, is not folded.
		backlog := *backlogBytes
		if backlog == 0 {
			backlog = int64(objects) * 12 << 10
		}
		p := process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
			o.MemoryBudget, o.MaxBacklogBytes = 16<<20, backlog
		})
		quick, slow := recorder.NewBelief(t), recorder.NewBelief(t)
		for name, b := range map[string]*recorder.Belief{"quick": quick, "slow": slow} {
			if _, err := p.Informer.AddDurableEventHandler(name, b, warmwatch.DurableOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		p.Run()
		bubble.Settle()
		hang := make(chan struct{})
		slow.Mu.Lock()
		slow.Hang = hang
		slow.Mu.Unlock()
		var heap, file uint64
		for i := range updates {
			name := fmt.Sprint("o", i%objects)
			if i%97 == 0 {
				f.Remove(name)
			}
			f.Put(source.ConfigMap(name, content))
			quick.Mu.Lock()
			quick.Events = nil
			quick.Mu.Unlock()
			if i%500 == 0 {
				bubble.Advance(3 * time.Second)
				f.Compact() // Its history is none of our memory.
			}
			if i%(updates/10) == updates/10-1 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				heap = max(heap, m.HeapAlloc)
				if st, err := os.Stat(path); err == nil {
					file = uint64(st.Size())
				}
				t.Logf("%d updates: %d MB of heap, a file of %d MB, %+v", i+1, m.HeapAlloc>>20, file>>20, p.Informer.Status().Handlers)
			}
		}
		bubble.Settle()
		st := p.Informer.Status().Handlers
		i := slices.IndexFunc(st, func(h warmwatch.HandlerStatus) bool { return h.Name == "slow" })
		if i < 0 || st[i].Undelivered == 0 || int64(st[i].Undelivered) > (4*backlog+tail)/(6<<10) {
			t.Errorf("of %d objects there wait %+v", objects, st)
		}
		if want := uint64(4*backlog + 3*tail); file > want {
			t.Errorf("the file has %d MB, expected at most %d", file>>20, want>>20)
		}
		if heap > 48<<20 {
			t.Errorf("%d MB of heap", heap>>20)
		}
		slow.Mu.Lock()
		slow.Hang = nil
		slow.Mu.Unlock()
		close(hang)
		bubble.Settle()
		slow.Expect(t, f)
		quick.Expect(t, f)
		for _, h := range p.Informer.Status().Handlers {
			if h.Undelivered != 0 || h.UndeliveredBytes != 0 {
				t.Errorf("in the end there wait %+v", h)
			}
		}
	})
}

func TestAHandlerThatIsStuckCostsDiskNotMemory(t *testing.T) { // D6
	const changes = 4000
	content := strings.Repeat("x", 8<<10)
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		path := testsupport.Path(t)
		p := process.Launch(t, path, f, nil)
		release := make(chan struct{})
		plain, durable := recorder.NewChain(t, "plain"), recorder.NewChain(t, "durable")
		hang := func(any) { <-release }
		for _, c := range []*recorder.Chain{plain, durable} {
			h := cache.FilteringResourceEventHandler{FilterFunc: func(obj any) bool { hang(obj); return true }, Handler: c}
			var err error
			if c == plain {
				_, err = p.Informer.AddEventHandler(h)
			} else {
				_, err = p.Informer.AddDurableEventHandler("d", h, warmwatch.DurableOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		p.Run()
		for i := range changes {
			f.Put(source.ConfigMap(fmt.Sprint(i%50), content))
		}
		bubble.Settle()
		if n := process.Undelivered(p.Informer.Status()); n != changes {
			t.Errorf("%d deltas wait, expected %d", n, changes)
		}
		close(release)
		bubble.Settle()
		for _, c := range []*recorder.Chain{plain, durable} {
			if got, want := fmt.Sprint(c.Versions()), fmt.Sprint(f.Contents()); got != want {
				t.Errorf("the %s handler believes in %s, there is %s", c.Name, got, want)
			}
		}
		if n := process.Undelivered(p.Informer.Status()); n != 0 {
			t.Errorf("%d deltas are kept", n)
		}
	})
}
