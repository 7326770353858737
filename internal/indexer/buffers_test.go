package indexer

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestBuffersHoldCopies: no record touches another's, and none the source.
func TestBuffersHoldCopies(t *testing.T) {
	noise := rand.NewChaCha8([32]byte{1})
	rnd := rand.New(noise)
	for range testsupport.Rounds(20, 2) {
		var b buffers
		var want, held [][]byte
		for range 200 {
			record := make([]byte, rnd.IntN(bufferBytes/3))
			_, _ = noise.Read(record)
			want, held = append(want, bytes.Clone(record)), append(held, b.hold(record))
			clear(record)
		}
		for i := range want {
			if !bytes.Equal(want[i], held[i]) {
				t.Fatalf("record %d of %d bytes is not what was held", i, len(want[i]))
			}
			if cap(held[i]) != len(held[i]) && len(held[i]) <= bufferBytes/4 {
				t.Fatalf("record %d has room that belongs to the next", i)
			}
		}
		b.release()
		if b.used != nil || b.free != nil {
			t.Fatal("buffers are in use after release")
		}
	}
}
