package warmwatch_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

var backlogUpdates = flag.Int("backlog.updates", 20_000, "updates of TestAHandlerThatHangsDoesNotFillTheDisk; 200000 is what was reported")

var backlogBytes = flag.Int64("backlog.bytes", 0, "MaxBacklogBytes of that test; 0: 12 KB for each object")

// TestAHandlerThatHangsDoesNotFillTheDisk: what waits for it is bounded by the number of
// objects. It prints what the file and the heap take.
func TestAHandlerThatHangsDoesNotFillTheDisk(t *testing.T) {
	bubble(t, func(t *testing.T) {
		updates := testsupport.Rounds(*backlogUpdates, 6000)
		objects := min(1000, updates/100)
		content := strings.Repeat("x", 3<<10)
		f := newSource(t)
		for i := range objects {
			f.put(configMap(fmt.Sprint("o", i), content))
		}
		path := testsupport.Path(t)
		const tail = 24 << 20 // What waits in the tail, and just behind it, is not folded.
		backlog := *backlogBytes
		if backlog == 0 {
			backlog = int64(objects) * 12 << 10
		}
		p := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
			o.MemoryBudget, o.MaxBacklogBytes = 16<<20, backlog
		})
		quick, slow := newBelief(t), newBelief(t)
		for name, b := range map[string]*belief{"quick": quick, "slow": slow} {
			if _, err := p.informer.AddDurableEventHandler(name, b, warmwatch.DurableOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		p.run()
		settle()
		hang := make(chan struct{})
		slow.mu.Lock()
		slow.hang = hang
		slow.mu.Unlock()
		var heap, file uint64
		for i := range updates {
			name := fmt.Sprint("o", i%objects)
			if i%97 == 0 {
				f.remove(name)
			}
			f.put(configMap(name, content))
			quick.mu.Lock()
			quick.events = nil
			quick.mu.Unlock()
			if i%500 == 0 {
				advance(3 * time.Second)
				f.compact() // Its history is none of our memory.
			}
			if i%(updates/10) == updates/10-1 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				heap = max(heap, m.HeapAlloc)
				if st, err := os.Stat(path); err == nil {
					file = uint64(st.Size())
				}
				t.Logf("%d updates: %d MB of heap, a file of %d MB, %+v", i+1, m.HeapAlloc>>20, file>>20, p.informer.Status().Handlers)
			}
		}
		settle()
		st := p.informer.Status().Handlers
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
		slow.mu.Lock()
		slow.hang = nil
		slow.mu.Unlock()
		close(hang)
		settle()
		slow.expect(t, f)
		quick.expect(t, f)
		for _, h := range p.informer.Status().Handlers {
			if h.Undelivered != 0 || h.UndeliveredBytes != 0 {
				t.Errorf("in the end there wait %+v", h)
			}
		}
	})
}
