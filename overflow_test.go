package warmwatch_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

// TestALeafThatSaysItIsLonger: bbolt believes how many pages a leaf has when it
// frees them.
func TestALeafThatSaysItIsLonger(t *testing.T) {
	var w worn
	bubble(t, func(t *testing.T) { w = newWorn(t) })
	pageBytes := persist.PageBytes
	for _, overflow := range []uint32{1, 3, 40, 1 << 20, 1<<32 - 1} {
		for third := range testsupport.Rounds(3, 1) {
			t.Run(fmt.Sprint(overflow, third), func(t *testing.T) {
				b := slices.Clone(w.file)
				n := 0
				for at := 2 * pageBytes; at+pageBytes <= len(b); at += pageBytes {
					p := b[at : at+pageBytes]
					flags, elementFlags := binary.NativeEndian.Uint16(p[8:]), binary.NativeEndian.Uint32(p[16:])
					if flags == 0x02 && elementFlags == 0 && binary.NativeEndian.Uint32(p[12:]) == 0 {
						if n++; n%5 != third {
							continue
						}
						binary.NativeEndian.PutUint32(p[12:], overflow)
					}
				}
				path := filepath.Join(t.TempDir(), "cache.db")
				if err := os.WriteFile(path, b, 0o600); err != nil {
					t.Fatal(err)
				}
				bubble(t, func(t *testing.T) {
					f := w.f.copy(t)
					p := launch(t, path, f, withContentIndex)
					p.damaged = true
					p.run()
					for i := range 160 {
						f.put(configMap(fmt.Sprintf("o%03d", i), "new"))
					}
					settle()
					f.put(configMap("o000", "newer"))
					settle()
					expectEqual(t, p.informer, f)
					p.stop()
					p = launch(t, path, f, withContentIndex).run()
					p.damaged = true
					settle()
					expectEqual(t, p.informer, f)
				})
			})
		}
	}
}
