package processor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
)

// TestARedeliveryThatIsDemandedWhileADeltaIsWithheldIsNotLost: the handler is told then, although nothing changes any more.
func TestARedeliveryThatIsDemandedWhileADeltaIsWithheldIsNotLost(t *testing.T) {
	for _, inList := range []bool{false, true} {
		t.Run(fmt.Sprintf("in its list: %v", inList), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &changingStore{chunkedStore: chunkedStore{chunks: 2}, seqs: map[string]uint64{}, before: func(string) {}}
				p, db := processorOf(t, store)
				p.opts.MaxPanics = 1
				demanded := false
				p.opts.Logger = funcr.New(func(_, args string) {
					if strings.Contains(args, "It is set aside") {
						demanded = true
						if err := p.Redeliver("d"); err != nil {
							t.Error(err)
						}
					}
				}, funcr.Options{})
				h := &tellsAll{}
				r, err := p.Add(h, "d", cache.HandlerOptions{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				panics := func() {
					if noted := r.(*listener).notePanic("000"); !strings.HasPrefix(noted, "1 in a row") {
						t.Fatalf("noted %q", noted)
					}
				}
				if inList {
					panics()
				}
				p.Start()
				time.Sleep(time.Minute)
				if !inList {
					panics()
					store.publish(t, p, db, cache.Added, "000", 0)
					time.Sleep(time.Minute)
				}
				h.mu.Lock()
				defer h.mu.Unlock()
				want := map[bool][]string{
					false: {"add 000 uid=0", "add 001 uid=0", "add 000 uid=1"},
					true:  {"add 001 uid=0", "add 000 uid=0"},
				}[inList]
				if !demanded || !slices.Equal(h.told, want) {
					t.Errorf("demanded %v, told %q, expected %q", demanded, h.told, want)
				}
			})
		})
	}
}

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
