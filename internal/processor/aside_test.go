package processor

import (
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
)

// hanging is a value that the disk never has.
type hanging struct{ release chan struct{} }

func (hanging) SizeBytes() int { return 1 }

func (h hanging) AppendTo(dst []byte) ([]byte, error) {
	<-h.release
	return dst, nil
}

// TestADiskThatDoesNotAnswerKeepsNoProcessFromDying: a panic is noted before the process ends, but
// not for ever.
func TestADiskThatDoesNotAnswerKeepsNoProcessFromDying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, db := processorOf(t, threeObjects{})
		p.opts.MaxPanics = 2
		r, err := p.Add(cache.ResourceEventHandlerFuncs{}, "d", cache.HandlerOptions{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		l := r.(*listener)
		if noted := l.notePanic("a"); !strings.HasPrefix(noted, "1 in a row") {
			t.Errorf("noted %q", noted)
		}
		h := hanging{make(chan struct{})}
		if _, err := db.Update(func(b *persist.Batch) { b.Put(persist.Bucket{Space: "other", Name: "b"}, "k", h) }); err != nil {
			t.Fatal(err)
		}
		if noted := l.notePanic("a"); !strings.Contains(noted, "no answer") {
			t.Errorf("noted %q", noted)
		}
		close(h.release)
		synctest.Wait()
		if noted := l.notePanic("a"); !strings.HasPrefix(noted, "3 in a row") {
			t.Errorf("noted %q", noted)
		}
	})
}
