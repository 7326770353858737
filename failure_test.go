package warmwatch_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

// damageTrials is how often a file is damaged, each time in another way.
var damageTrials = flag.Int("damage.trials", 150, "how often TestAnyDamageOfTheFile damages a file, and a third of it while the file is in use")

// withContentIndex is the set-up of the informers of these tests.
func withContentIndex(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
	o.Indexers = cache.Indexers{"content": byContent}
}

// worn is a cache file after some life: objects of many sizes, index entries,
// deltas that wait for a durable handler, free pages.
type worn struct {
	file []byte
	f    *source
	// ever is every version of every object, by key@resourceVersion.
	ever map[string]*corev1.ConfigMap
}

func newWorn(t *testing.T) worn {
	t.Helper()
	f := newSource(t)
	random := rand.New(rand.NewPCG(7, 7))
	content := func() string { return strings.Repeat(string(rune('a'+random.IntN(5))), 1+random.IntN(400)) }
	for i := range 150 {
		f.put(configMap(fmt.Sprintf("o%03d", i), content()))
	}
	f.put(configMap("large", strings.Repeat("x", 20<<10)))
	path := testsupport.Path(t)
	p := launch(t, path, f, withContentIndex)
	release := make(chan struct{})
	stuck := &recorder{during: func(event string) {
		if strings.HasPrefix(event, "update") {
			<-release
		}
	}}
	if _, err := p.informer.AddDurableEventHandler("stuck", stuck, warmwatch.DurableOptions{}); err != nil {
		t.Fatal(err)
	}
	p.run()
	settle()
	for range 10 {
		for range 10 {
			name := fmt.Sprintf("o%03d", random.IntN(160))
			f.put(configMap(name, content()))
			if random.IntN(5) == 0 {
				f.remove(name)
			}
		}
		settle()
	}
	w := worn{f: f, ever: map[string]*corev1.ConfigMap{}}
	w.file = testsupport.ReadUsed(t, path)
	close(release)
	p.stop()
	for _, e := range f.history {
		w.ever[version(e.Object)] = e.Object.(*corev1.ConfigMap)
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
		if !apiequality.Semantic.DeepEqual(obj, w.ever[version(obj)]) {
			t.Errorf("%s is served, and never was so", version(obj))
		}
	}
}

// expectEqual compares the whole content, and the index if there is one, with the
// source.
func expectEqual(t *testing.T, informer cache.SharedIndexInformer, f *source) {
	t.Helper()
	expectStore(t, informer, f)
	index := map[string][]string{}
	for key, obj := range f.objects {
		got, exists, err := informer.GetStore().GetByKey(key)
		if err != nil || !exists || !apiequality.Semantic.DeepEqual(got, obj) {
			t.Errorf("%s differs: %v, %v", key, exists, err)
		}
		value := obj.(*corev1.ConfigMap).Data["v"]
		index[value] = append(index[value], key)
	}
	if informer.GetIndexer().GetIndexers()["content"] == nil {
		return
	}
	values := informer.GetIndexer().ListIndexFuncValues("content")
	for _, value := range values {
		got, err := informer.GetIndexer().IndexKeys("content", value)
		slices.Sort(got)
		slices.Sort(index[value])
		if !slices.Equal(got, index[value]) {
			t.Errorf("index value %.20q has %q, expected %q (%v)", value, got, index[value], err)
		}
	}
	if len(values) != len(index) {
		t.Errorf("%d indexed values, expected %d", len(values), len(index))
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
	bubble(t, func(t *testing.T) { w = newWorn(t) })
	for seed := range uint64(testsupport.Rounds(*damageTrials, 16)) {
		damaged, what := damage(rand.New(rand.NewPCG(seed, 1)), w.file)
		t.Run(fmt.Sprintf("seed=%d: %s", seed, what), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cache.db")
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			bubble(t, func(t *testing.T) { w.trial(t, path) })
		})
	}
}

func (w worn) trial(t *testing.T, path string) {
	f := w.f.copy(t)
	f.setDown(errUnreachable)
	p := launch(t, path, f, withContentIndex)
	p.damaged = true
	plain, durable := newChain(t, ""), addDurable(t, p, "stuck")
	plain.forgiving = true // Deletions that were not acknowledged may come first.
	if _, err := p.informer.AddEventHandler(plain); err != nil {
		t.Fatal(err)
	}
	p.run()
	settle()
	w.expectTrue(t, p.informer)
	f.setDown(nil)
	settle()
	expectEqual(t, p.informer, f)
	f.put(configMap("o000", "new"), configMap("new", "new"))
	settle()
	f.remove("o000")
	settle()
	expectEqual(t, p.informer, f)
	if diff := cmp.Diff(f.contents(), plain.versions()); diff != "" {
		t.Errorf("the plain handler believes in something else (-source +handler):\n%s", diff)
	}
	if st := p.informer.Status(); st.Err != nil || st.Phase != warmwatch.PhaseLive {
		t.Errorf("status %+v", st)
	}
	if told := durable.take(); len(told) == 0 || told[len(told)-1] != fmt.Sprintf("delete ns/o000@%d", f.rv) {
		t.Errorf("the durable handler's last notifications: %q", told[max(0, len(told)-3):])
	}
	p.stop()

	p = launch(t, path, f, withContentIndex).run()
	p.damaged = true
	settle()
	expectEqual(t, p.informer, f)
}

// TestDamagedDeltasAreLoggedOnce for each handler that is told everything again.
func TestDamagedDeltasAreLoggedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, configMap("a")), testsupport.Path(t)
		p := launch(t, path, f, nil)
		d := addDurable(t, p, "d")
		p.run()
		settle()
		p.stop()
		d.take()
		p = launch(t, path, f, nil).run() // Without the handler.
		for i := range 50 {
			f.put(configMap(fmt.Sprint("n", i)))
		}
		settle()
		p.stop()
		flipAll(t, path, "deltas", "")
		logger, lines := loggerOf("delta")
		f.setDown(errUnreachable) // A list would end before all are read.
		p = launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
		d = addDurable(t, p, "d")
		p.run()
		settle()
		if told := d.take(); len(told) != 51 {
			t.Errorf("told %q, expected all objects", told)
		}
		if len(lines()) != 2 {
			t.Errorf("logged %q, expected that one cannot be read, and that a handler is told everything", lines())
		}
	})
}

// TestDamagedRecordsAreLoggedOnce, however many there are, and however often they are read.
func TestDamagedRecordsAreLoggedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		for i := range 100 {
			f.put(configMap(fmt.Sprint("n", i), "x"))
		}
		path := filled(t, f, withContentIndex)
		flipAll(t, path, "objects", "kns/")
		logger, lines := loggerOf("read")
		f.setDown(errUnreachable)
		p := launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
			withContentIndex(o, io)
			o.Logger = logger
		})
		add(t, p.informer)
		p.run()
		settle()
		for range 5 {
			p.informer.GetStore().List()
		}
		f.setDown(nil)
		settle()
		expectEqual(t, p.informer, f)
		if lines := lines(); len(lines) != 2 || !strings.Contains(lines[1], "is written anew") {
			t.Errorf("logged %q, expected what was found, and that it is repaired", lines)
		}
	})
}

func TestARecordWithABadChecksumIsNotServedAndComesBack(t *testing.T) { // A7
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a", "x"), configMap("b", "x"), configMap("c", "x"))
		path := filled(t, f, withContentIndex)
		changeValue(t, path, "objects", "ns/b", func(v []byte) { v[len(v)/2] ^= 1 })
		f.setDown(errUnreachable)
		p := launch(t, path, f, withContentIndex)
		r, registration := add(t, p.informer)
		p.run()
		settle()
		r.expect(t) // Its initial list waits for the relist.
		if !p.informer.HasSynced() || registration.HasSynced() {
			t.Error("not synced from disk, or the handler is")
		}
		if obj, exists, err := p.informer.GetStore().GetByKey("ns/b"); err == nil || exists {
			t.Errorf("GetByKey of what cannot be read: %v, %v", obj, exists)
		}
		if got := names(p.informer.GetStore().List(), nil); !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("List: %q", got)
		}
		if st := p.informer.Status(); st.Err == nil || !strings.Contains(st.Err.Error(), "ns/b") {
			t.Errorf("status while it cannot be read: %+v", st)
		}
		f.setDown(nil)
		settle()
		advance(time.Second)
		r.expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
		expectEqual(t, p.informer, f)
		if st := p.informer.Status(); st.Err != nil || st.Relists != 1 {
			t.Errorf("status after the relist: %+v", st)
		}
	})
}

// TestAReadThatMeetsDamageWaitsForTheRelist, so that it has all there is, while the server is heard. If no list comes to its
// end, reads that can say so fail after 10 s, and List leaves out what cannot be read once the server is not heard (A7).
func TestAReadThatMeetsDamageWaitsForTheRelist(t *testing.T) {
	keysByIndex := func(ix cache.Indexer) ([]string, error) { return ix.IndexKeys("content", "x") }
	byIndex := func(ix cache.Indexer) ([]string, error) {
		objects, err := ix.ByIndex("content", "x")
		return names(objects, nil), err
	}
	list := func(ix cache.Indexer) ([]string, error) { return names(ix.List(), nil), nil }
	get := func(ix cache.Indexer) ([]string, error) {
		obj, exists, err := ix.GetByKey("ns/b")
		if !exists {
			return nil, err
		}
		return []string{accessor(obj).GetName()}, err
	}
	for name, c := range map[string]struct {
		bucket string
		read   func(cache.Indexer) ([]string, error)
		want   []string
		fails  bool // Else it has less.
	}{
		"List":      {"objects", list, []string{"a", "b", "c"}, false},
		"GetByKey":  {"objects", get, []string{"b"}, true},
		"ByIndex":   {"objects", byIndex, []string{"a", "b", "c"}, true},
		"IndexKeys": {"index", keysByIndex, []string{"ns/a", "ns/b", "ns/c"}, true},
	} {
		for _, lists := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/lists=%t", name, lists), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := newSource(t, configMap("a", "x"), configMap("b", "x"), configMap("c", "x"))
					path := filled(t, f, withContentIndex)
					key := "ns/b"
					if c.bucket == "index" {
						key = "\acontent\x02vxns/b"
					}
					changeValue(t, path, c.bucket, key, func(v []byte) { v[len(v)/2] ^= 1 })
					f.with(func() {
						f.onList = func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
							if lists || o.Limit == 1 {
								return nil, nil
							}
							return nil, errUnreachable
						}
					})
					p := launch(t, path, f, withContentIndex)
					p.damaged = true
					p.run()
					settle()
					begin := time.Now()
					got, err := c.read(p.informer.GetIndexer())
					slices.Sort(got)
					waited := time.Since(begin)
					if lists && (err != nil || !slices.Equal(got, c.want)) {
						t.Errorf("%q, %v, expected %q", got, err, c.want)
					}
					if !lists && (waited > time.Minute || c.fails && (err == nil || waited < 9*time.Second) || len(got) >= len(c.want)) {
						t.Errorf("%q, %v after %v, although nothing is listed", got, err, waited)
					}
				})
			})
		}
	}
}

func TestADamagedKeyIsFound(t *testing.T) {
	for _, bucket := range []string{"objects", "index"} {
		t.Run(bucket+": by itself, when it hides itself", func(t *testing.T) {
			bubble(t, func(t *testing.T) { damagedKey(t, bucket, 0x40, false) })
		})
		t.Run(bucket+": by a reader, when it hides what is behind it", func(t *testing.T) {
			bubble(t, func(t *testing.T) { damagedKey(t, bucket, 0x04, true) })
		})
	}
	// Without it the store would seem to be empty.
	t.Run("store: at the start", func(t *testing.T) {
		bubble(t, func(t *testing.T) { damagedKey(t, "store", 0x40, true) })
	})
}

func damagedKey(t *testing.T, bucket string, flip byte, behind bool) {
	f := newSource(t, configMap("a", "x"), configMap("b", "y"), configMap("c", "z"))
	path := filled(t, f, withContentIndex)
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Both kinds of keys begin with what readers look for.
	if err := db.Update(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
			b := space.Bucket([]byte(bucket))
			if b == nil {
				return nil
			}
			k, v := b.Cursor().First()
			k, v = slices.Clone(k), slices.Clone(v)
			if err := b.Delete(k); err != nil {
				return err
			}
			k[2] ^= flip
			return b.Put(k, v)
		})
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	p := launch(t, path, f, withContentIndex).run()
	if behind {
		p.informer.GetIndexer().ListIndexFuncValues("content")
		p.informer.GetIndexer().List()
		advance(5 * time.Second) // Enough for a relist; nothing else has read it yet.
	} else {
		settle()
	}
	expectEqual(t, p.informer, f)
	relists := 1
	if bucket == "index" { // It is made anew from the objects.
		relists = 0
	}
	if st := p.informer.Status(); st.Relists != relists {
		t.Errorf("status %+v", st)
	}
}

func TestABadCheckpointOrCursorMeansARelist(t *testing.T) {
	for _, bad := range [][2]string{{"checkpoint", "resume"}, {"store", "state"}, {"handlers", "handler/d"}} {
		t.Run(bad[0]+"/"+bad[1], func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a", "x"), configMap("b", "x"))
				path := testsupport.Path(t)
				p := launch(t, path, f, withContentIndex)
				add2(t, p)
				p.run()
				settle()
				p.stop()
				changeValue(t, path, bad[0], bad[1], func(v []byte) { v[len(v)-1] ^= 1 })
				f.put(configMap("a", "y"))
				f.remove("b")
				p = launch(t, path, f, withContentIndex)
				_, d := add2(t, p)
				p.run()
				settle()
				expectEqual(t, p.informer, f)
				if st := p.informer.Status(); st.Err != nil || st.Relists != 1 {
					t.Errorf("status %+v", st)
				}
				f.put(configMap("c", "z"))
				settle()
				if told := d.take(); len(told) == 0 || told[len(told)-1] != "add ns/c@5" {
					t.Errorf("the durable handler was told %q", told)
				}
			})
		})
	}
}

// keepLengths does not damage the lengths in the headers of tree pages. bbolt trusts
// them when it frees pages. They are checked before the first write only, see
// docs/limits.md.
func keepLengths(file, damaged []byte) {
	for at := 0; at+16 <= min(len(file), len(damaged)); at += persist.PageBytes {
		if flags := file[at+8]; flags == 0x01 || flags == 0x02 {
			copy(damaged[at+12:at+16], file[at+12:])
		}
	}
}

// TestDamageWhileTheFileIsInUse changes the file under a running informer.
func TestDamageWhileTheFileIsInUse(t *testing.T) {
	var w worn
	bubble(t, func(t *testing.T) { w = newWorn(t) })
	for seed := range uint64(testsupport.Rounds(*damageTrials, 16) / 3) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			path := filepath.Join(t.TempDir(), "cache.db")
			if err := os.WriteFile(path, w.file, 0o600); err != nil {
				t.Fatal(err)
			}
			bubble(t, func(t *testing.T) { w.damageInUse(t, path, random) })
		})
	}
}

func (w worn) damageInUse(t *testing.T, path string, random *rand.Rand) {
	f := w.f.copy(t)
	memory, indexed := random.IntN(2) == 0, random.IntN(2) == 0
	setUp := func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
		if !memory {
			o.MemoryBudget = 1 // Nothing but what is in the file.
		}
		if indexed {
			withContentIndex(o, io)
		}
	}
	p := launch(t, path, f, setUp)
	p.damaged = true
	plain := newChain(t, "")
	plain.forgiving = true
	if _, err := p.informer.AddEventHandler(plain); err != nil {
		t.Fatal(err)
	}
	p.run()
	if memory {
		synctest.Wait()
		p.informer.GetStore().List() // What is decoded stays.
	}
	change := func() {
		for range random.IntN(20) {
			name := fmt.Sprintf("o%03d", random.IntN(160))
			f.put(configMap(name, fmt.Sprint(random.IntN(100))))
			if memory && random.IntN(4) == 0 { // What only the file knew can be lost with its history.
				f.remove(name)
			}
		}
	}
	change()
	if random.IntN(2) == 0 {
		settle()
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
		f.restart()
	}
	change()
	settle()
	// What is damaged is found when it is read.
	p.informer.GetStore().List()
	for _, value := range p.informer.GetIndexer().ListIndexFuncValues("content") {
		_, _ = p.informer.GetIndexer().ByIndex("content", value)
	}
	advance(time.Hour) // Or, if it is entries of an index that are just not there, when all are compared.
	settle()
	expectEqual(t, p.informer, f)
	change()
	advance(time.Hour)
	settle()
	expectEqual(t, p.informer, f)
	if diff := cmp.Diff(f.contents(), plain.versions()); diff != "" {
		t.Errorf("the handler believes in something else (-source +handler):\n%s", diff)
	}
	p.stop()
	p = launch(t, path, f, setUp).run()
	p.damaged = true
	settle()
	expectEqual(t, p.informer, f)
}

// TestWhatTheFileLostIsDeletedFromMemoryToo: the file forgets an object that is
// in memory, and then the server deletes it.
func TestWhatTheFileLostIsDeletedFromMemoryToo(t *testing.T) {
	for _, test := range []struct {
		name    string
		damage  func(t *testing.T, path string)
		missed  bool // By a relist.
		indexed bool
	}{
		{"event", clearFile, false, false},
		{"event, indexed", clearFile, false, true},
		{"event, nothing noticed", loseLast, false, false},
		{"relist", clearFile, true, false},
		{"relist, indexed", clearFile, true, true},
		{"relist, nothing noticed", loseLast, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a", "x"), configMap("b", "y"), configMap("c", "z"))
				path := testsupport.Path(t)
				p := launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
					o.CommitInterval = time.Second
					if test.indexed {
						withContentIndex(o, io)
					}
				})
				p.damaged = true
				r, _ := add(t, p.informer)
				p.run()
				advance(5 * time.Second)
				r.expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
				test.damage(t, path)
				if test.missed {
					f.setDown(errUnreachable)
					f.closeWatches()
				}
				f.remove("c") // Now the damage is found, too.
				advance(20 * time.Second)
				f.setDown(nil)
				settle()
				expectEqual(t, p.informer, f)
				if _, exists, err := p.informer.GetStore().GetByKey("ns/c"); exists || err != nil {
					t.Errorf("it is still there, %v", err)
				}
				told := slices.DeleteFunc(r.take(), func(event string) bool { return !strings.Contains(event, "ns/c") })
				if len(told) != 1 || told[0] != "delete ns/c@4" && told[0] != "lost ns/c@3" {
					t.Errorf("told %q", told)
				}
			})
		})
	}
}

// changeInPlace changes the bytes of a file that is in use.
func changeInPlace(t *testing.T, path string, change func([]byte)) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	change(b)
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

func clearFile(t *testing.T, path string) {
	t.Helper()
	changeInPlace(t, path, func(b []byte) { clear(b) })
}

// loseLast makes a leaf of three objects say that it has two: bbolt then sees no
// more.
func loseLast(t *testing.T, path string) {
	t.Helper()
	changeInPlace(t, path, func(b []byte) {
		header := []byte{2, 0, 3, 0, 0, 0, 0, 0} // Flags, count, overflow.
		found := false
		for at := 0; ; {
			i := bytes.Index(b[at:], []byte("kns/a"))
			if i < 0 {
				break
			}
			at += i + 1
			near := b[max(0, at-100):at]
			if count := bytes.LastIndex(near, header); count >= 0 {
				near[count+2] = 2
				found = true
			}
		}
		if !found {
			t.Fatal("there is no such leaf")
		}
	})
}

// TestAnEmptiedFileIsNotServedAsComplete: the file is lost under a running
// process, which ends before the server has sent everything again. A reader that
// takes absence for deletion must not see a part of the objects as the whole.
func TestAnEmptiedFileIsNotServedAsComplete(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a", "x"), configMap("b", "y"), configMap("c", "z"))
		path := filled(t, f, nil)
		p := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.MemoryBudget = 1 })
		p.damaged = true
		p.run()
		settle()
		clearFile(t, path)
		f.put(configMap("a", "new")) // The damage is found, and the file replaced.
		f.setDown(errUnreachable)
		f.closeWatches()
		advance(20 * time.Second)
		after := testsupport.Path(t)
		testsupport.CopyFile(t, path, after)

		p = launch(t, after, f, nil)
		r, _ := add(t, p.informer)
		p.run()
		settle()
		if p.informer.HasSynced() {
			t.Errorf("synced, with %q", names(p.informer.GetStore().List(), nil))
		}
		r.expect(t)
		f.setDown(nil)
		settle()
		expectEqual(t, p.informer, f)
	})
}

// TestRebuildingIndicesFindsWhatIsMissing, because it counts again.
func TestRebuildingIndicesFindsWhatIsMissing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a", "x"), configMap("b", "y"), configMap("c", "z"))
		path := filled(t, f, withContentIndex)
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Update(func(tx *bolt.Tx) error {
			return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
				if b := space.Bucket([]byte("objects")); b != nil {
					return b.Delete([]byte("kns/b"))
				}
				return nil
			})
		}); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		p := launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
			withContentIndex(o, io)
			io.IndexVersion = "another"
		}).run()
		advance(5 * time.Second)
		expectEqual(t, p.informer, f)
		if st := p.informer.Status(); st.Relists != 1 || st.Err != nil {
			t.Errorf("status %+v", st)
		}
	})
}

func TestAnEventThatCouldNotBeAppliedIsTriedAgainByTheNextProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := testsupport.Path(t)
		life := func(transform cache.TransformFunc) *recorder {
			p := launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "1" })
			if err := p.informer.SetTransform(transform); err != nil {
				t.Fatal(err)
			}
			r, _ := add(t, p.informer)
			f.setDown(errUnreachable) // The handler is told of what is there first.
			p.run()
			settle()
			f.setDown(nil)
			settle()
			f.put(configMap("b"), configMap("c"))
			settle()
			p.stop()
			return r
		}
		r := life(func(obj any) (any, error) {
			if accessor(obj).GetName() == "b" {
				return nil, errTransform
			}
			return obj, nil
		})
		r.expect(t, "add ns/a@1 initial", "add ns/c@3")
		r = life(func(obj any) (any, error) { return obj, nil })
		r.expect(t, "add ns/a@1 initial", "add ns/c@3 initial", "add ns/b@2", "update ns/b@2→4", "update ns/c@3→5")
	})
}

// flipAll damages each value of a bucket whose key begins like this.
func flipAll(t *testing.T, path, bucket, prefix string) {
	t.Helper()
	changeBucket(t, path, bucket, func(b *bolt.Bucket) error {
		damaged := map[string][]byte{}
		err := b.ForEach(func(key, value []byte) error {
			if bytes.HasPrefix(key, []byte(prefix)) {
				damaged[string(key)] = bytes.Clone(value)
			}
			return nil
		})
		for key, value := range damaged {
			value[0] ^= 1
			err = errors.Join(err, b.Put([]byte(key), value))
		}
		return err
	})
}

// changeValue changes a value of informers in a file that is not open.
func changeValue(t *testing.T, path, bucket, key string, change func([]byte)) {
	t.Helper()
	found := false
	changeBucket(t, path, bucket, func(b *bolt.Bucket) error {
		v := slices.Clone(b.Get([]byte("k" + key)))
		if v == nil {
			return nil
		}
		found = true
		change(v)
		return b.Put([]byte("k"+key), v)
	})
	if !found {
		t.Fatalf("%s has no %s", bucket, key)
	}
}
