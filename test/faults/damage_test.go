package faults_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
	"github.com/warmwatch/warmwatch/persist"
)

// damageTrials is how often a file is damaged, each time in another way.
var damageTrials = flag.Int("damage.trials", 60, "how often TestAnyDamageOfTheFile damages a file, and a third of it while the file is in use; a long run has 150 or more")

// worn is a cache file after some life: objects of many sizes, index entries,
// deltas that wait for a durable handler, free pages.
type worn struct {
	file []byte
	f    *source.Source
	// ever is every version of every object, by key@resourceVersion.
	ever map[string]*corev1.ConfigMap
}

func newWorn(t *testing.T) worn {
	t.Helper()
	f := source.New(t)
	random := rand.New(rand.NewPCG(7, 7))
	content := func() string { return strings.Repeat(string(rune('a'+random.IntN(5))), 1+random.IntN(400)) }
	for i := range 150 {
		f.Put(source.ConfigMap(fmt.Sprintf("o%03d", i), content()))
	}
	f.Put(source.ConfigMap("large", strings.Repeat("x", 20<<10)))
	path := testsupport.Path(t)
	p := process.Launch(t, path, f, process.ByContent)
	release := make(chan struct{})
	stuck := &recorder.Recorder{During: func(event string) {
		if strings.HasPrefix(event, "update") {
			<-release
		}
	}}
	if _, err := p.Informer.AddDurableEventHandler("stuck", stuck, warmwatch.DurableOptions{}); err != nil {
		t.Fatal(err)
	}
	p.Run()
	bubble.Settle()
	for range 10 {
		for range 10 {
			name := fmt.Sprintf("o%03d", random.IntN(160))
			f.Put(source.ConfigMap(name, content()))
			if random.IntN(5) == 0 {
				f.Remove(name)
			}
		}
		bubble.Settle()
	}
	w := worn{f: f, ever: map[string]*corev1.ConfigMap{}}
	w.file = testsupport.ReadUsed(t, path)
	close(release)
	p.Stop()
	for _, e := range f.History {
		w.ever[source.Version(e.Object)] = e.Object.(*corev1.ConfigMap)
	}
	return w
}

// expectTrue checks that every served object is a version that once existed.
func (w worn) expectTrue(t *testing.T, informer cache.SharedIndexInformer) {
	t.Helper()
	ix := informer.GetIndexer()
	objs := ix.List()
	for version := range w.ever {
		key, _, _ := strings.Cut(version, "@")
		if obj, exists, err := ix.GetByKey(key); err == nil && exists {
			objs = append(objs, obj)
		}
	}
	for _, value := range ix.ListIndexFuncValues("content") {
		indexed, err := ix.ByIndex("content", value)
		if err == nil {
			objs = append(objs, indexed...)
		}
	}
	for _, obj := range objs {
		if !apiequality.Semantic.DeepEqual(obj, w.ever[source.Version(obj)]) {
			t.Errorf("%s is served, and never was so", source.Version(obj))
		}
	}
}

// damage changes a file as disks, copies and bad luck do.
func damage(random *rand.Rand, file []byte) (damaged []byte, what string) {
	b := slices.Clone(file)
	pageBytes := persist.PageBytes
	page := func() []byte {
		i := random.IntN(len(b) / pageBytes)
		return b[i*pageBytes : (i+1)*pageBytes]
	}
	fill := func(p []byte) {
		for i := range p {
			p[i] = byte(random.Uint32())
		}
	}
	switch kind := random.IntN(8); kind {
	case 0:
		b[random.IntN(len(b))] ^= 1 << random.IntN(8)
		what = "a bit flipped"
	case 1:
		for range 1 + random.IntN(100) {
			b[random.IntN(len(b))] = byte(random.Uint32())
		}
		what = "bytes changed"
	case 2:
		fill(page())
		what = "a page of noise"
	case 3:
		clear(page())
		what = "a page of zeros"
	case 4:
		p := page()[:16] // The header: id, flags, count, overflow.
		p[random.IntN(len(p))] ^= byte(1 + random.IntN(255))
		what = "a page header changed"
	case 5:
		b = b[:random.IntN(len(b))]
		what = "truncated"
	case 6:
		more := make([]byte, random.IntN(3*pageBytes))
		fill(more)
		b = append(b, more...)
		what = "extended"
	case 7:
		p := b[:2*pageBytes] // The meta pages.
		binary.NativeEndian.PutUint64(p[random.IntN(len(p)-8):], random.Uint64())
		what = "meta pages changed"
	}
	return b, what
}

// TestAnyDamageOfTheFile: the program lives, nothing false is served, and once
// the server is there the cache equals it (A5, S3).
func TestAnyDamageOfTheFile(t *testing.T) {
	var w worn
	bubble.Run(t, func(t *testing.T) { w = newWorn(t) })
	for seed := range uint64(testsupport.Rounds(*damageTrials, 16)) {
		damaged, what := damage(rand.New(rand.NewPCG(seed, 1)), w.file)
		t.Run(fmt.Sprintf("seed=%d: %s", seed, what), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cache.db")
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			bubble.Run(t, func(t *testing.T) { w.trial(t, path) })
		})
	}
}

func (w worn) trial(t *testing.T, path string) {
	f := w.f.Copy(t)
	f.SetDown(source.ErrUnreachable)
	p := process.Launch(t, path, f, process.ByContent)
	p.Damaged = true
	plain, durable := recorder.NewChain(t, ""), process.AddDurable(t, p, "stuck")
	plain.Forgiving = true // Deletions that were not acknowledged may come first.
	if _, err := p.Informer.AddEventHandler(plain); err != nil {
		t.Fatal(err)
	}
	p.Run()
	bubble.Settle()
	w.expectTrue(t, p.Informer)
	f.SetDown(nil)
	bubble.Settle()
	process.ExpectEqual(t, p.Informer, f)
	f.Put(source.ConfigMap("o000", "new"), source.ConfigMap("new", "new"))
	bubble.Settle()
	f.Remove("o000")
	bubble.Settle()
	process.ExpectEqual(t, p.Informer, f)
	if diff := cmp.Diff(f.Contents(), plain.Versions()); diff != "" {
		t.Errorf("the plain handler believes in something else (-source +handler):\n%s", diff)
	}
	if st := p.Informer.Status(); st.Err != nil || st.Phase != warmwatch.PhaseLive {
		t.Errorf("status %+v", st)
	}
	if got := durable.Take(); len(got) == 0 || got[len(got)-1] != fmt.Sprintf("delete ns/o000@%d", f.RV) {
		t.Errorf("the durable handler's last notifications: %q", got[max(0, len(got)-3):])
	}
	p.Stop()

	p = process.Launch(t, path, f, process.ByContent).Run()
	p.Damaged = true
	bubble.Settle()
	process.ExpectEqual(t, p.Informer, f)
}

// keepLengths does not damage the lengths in the headers of tree pages and of the freelist. bbolt trusts
// them when it frees pages. They are checked before the first write only, see
// docs/limits.md.
func keepLengths(file, damaged []byte) {
	for at := 0; at+16 <= min(len(file), len(damaged)); at += persist.PageBytes {
		if flags := file[at+8]; flags == 0x01 || flags == 0x02 || flags == 0x10 {
			copy(damaged[at+12:at+16], file[at+12:])
		}
	}
}

// TestDamageWhileTheFileIsInUse changes the file under a running informer.
func TestDamageWhileTheFileIsInUse(t *testing.T) {
	var w worn
	bubble.Run(t, func(t *testing.T) { w = newWorn(t) })
	for seed := range uint64(testsupport.Rounds(*damageTrials, 16) / 3) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			path := filepath.Join(t.TempDir(), "cache.db")
			if err := os.WriteFile(path, w.file, 0o600); err != nil {
				t.Fatal(err)
			}
			bubble.Run(t, func(t *testing.T) { w.damageInUse(t, path, random) })
		})
	}
}

func (w worn) damageInUse(t *testing.T, path string, random *rand.Rand) {
	f := w.f.Copy(t)
	memory, indexed := random.IntN(2) == 0, random.IntN(2) == 0
	setUp := func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
		if !memory {
			o.MemoryBudget = 1 // Nothing but what is in the file.
		}
		if indexed {
			process.ByContent(o, io)
		}
	}
	p := process.Launch(t, path, f, setUp)
	p.Damaged = true
	plain := recorder.NewChain(t, "")
	plain.Forgiving = true
	if _, err := p.Informer.AddEventHandler(plain); err != nil {
		t.Fatal(err)
	}
	p.Run()
	if memory {
		synctest.Wait()
		p.Informer.GetStore().List() // What is decoded stays.
	}
	change := func() {
		for range random.IntN(20) {
			name := fmt.Sprintf("o%03d", random.IntN(160))
			f.Put(source.ConfigMap(name, fmt.Sprint(random.IntN(100))))
			if memory && random.IntN(4) == 0 { // What only the file knew can be lost with its history.
				f.Remove(name)
			}
		}
	}
	change()
	if random.IntN(2) == 0 {
		bubble.Settle()
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	file := testsupport.ReadUsed(t, path)
	damaged, _ := damage(random, file)
	keepLengths(file, damaged)
	// Through one descriptor: what was damaged may be replaced at once.
	opened, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if _, err := opened.Write(damaged); err != nil {
		t.Fatal(err)
	}
	if len(damaged) >= len(file) { // It was not truncated: the empty pages at its end are still there.
		if err := opened.Truncate(max(info.Size(), int64(len(damaged)))); err != nil {
			t.Fatal(err)
		}
	}
	if random.IntN(2) == 0 {
		f.Restart()
	}
	change()
	bubble.Settle()
	// What is damaged is found when it is read.
	p.Informer.GetStore().List()
	for _, value := range p.Informer.GetIndexer().ListIndexFuncValues("content") {
		_, _ = p.Informer.GetIndexer().ByIndex("content", value)
	}
	bubble.Advance(time.Hour) // Or, if it is entries of an index that are just not there, when all are compared.
	bubble.Settle()
	process.ExpectEqual(t, p.Informer, f)
	change()
	bubble.Advance(time.Hour)
	bubble.Settle()
	process.ExpectEqual(t, p.Informer, f)
	if diff := cmp.Diff(f.Contents(), plain.Versions()); diff != "" {
		t.Errorf("the handler believes in something else (-source +handler):\n%s", diff)
	}
	p.Stop()
	p = process.Launch(t, path, f, setUp).Run()
	p.Damaged = true
	bubble.Settle()
	process.ExpectEqual(t, p.Informer, f)
}

// TestALeafThatSaysItIsLonger: bbolt believes how many pages a leaf has when it
// frees them.
func TestALeafThatSaysItIsLonger(t *testing.T) {
	var w worn
	bubble.Run(t, func(t *testing.T) { w = newWorn(t) })
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
				bubble.Run(t, func(t *testing.T) {
					f := w.f.Copy(t)
					p := process.Launch(t, path, f, process.ByContent)
					p.Damaged = true
					p.Run()
					for i := range 160 {
						f.Put(source.ConfigMap(fmt.Sprintf("o%03d", i), "new"))
					}
					bubble.Settle()
					f.Put(source.ConfigMap("o000", "newer"))
					bubble.Settle()
					process.ExpectEqual(t, p.Informer, f)
					p.Stop()
					p = process.Launch(t, path, f, process.ByContent).Run()
					p.Damaged = true
					bubble.Settle()
					process.ExpectEqual(t, p.Informer, f)
				})
			})
		}
	}
}
