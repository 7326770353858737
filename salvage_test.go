package warmwatch_test

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

// TestADurableHandlerOutlivesAFileThatIsFoundDamagedAtAStart: its cursor and
// its deltas are salvaged. So it is told of objects that were deleted while nothing
// watched (Q2), and is not told again of those that it knows.
func TestADurableHandlerOutlivesAFileThatIsFoundDamagedAtAStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
		path := testsupport.Path(t)
		p := launch(t, path, f, nil)
		release := make(chan struct{})
		r := &recorder{during: func(event string) {
			if strings.HasPrefix(event, "update") {
				<-release
			}
		}}
		if _, err := p.informer.AddDurableEventHandler("d", r); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		r.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
		f.put(configMap("a", "x"))
		synctest.Wait()
		f.remove("c") // It is not told of this, either.
		settle()
		crashed := p.crash()
		close(release)
		p.stop()

		damageFreelist(t, crashed)
		f.remove("b")
		p = launch(t, crashed, f, nil)
		if n := len(p.cache.Status().SetAside); n != 1 {
			t.Fatalf("%d files were set aside", n)
		}
		d := addDurable(t, p, "d")
		p.run()
		settle()
		if diff := cmp.Diff([]string{"update ns/a@1→4", "delete ns/c@5", "lost ns/b@2"}, d.take()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		expectStore(t, p.informer, f)
	})
}

// damageFreelist has a file that cannot be written to any more.
func damageFreelist(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for id := range 2 { // Of both meta pages: the freelist is the number at 32.
		freelist := binary.NativeEndian.Uint64(b[id*persist.PageBytes+16+32:])
		b[freelist*persist.PageBytes+8] = 0x77
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
