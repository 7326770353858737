package queue

import (
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// world is a store of Pods by key, and the log of its changes. It outlives the log's
// process.
type world struct {
	t    *testing.T
	rnd  *rand.Rand
	q    *Log
	path string

	seq     uint64
	objects map[string]*corev1.Pod
	history []map[string]*corev1.Pod // objects as of each Seq.
	durable uint64                   // Seq of the last flush.
	uids    int
	heard   map[string]*follower // Durable ones, by name.
	plain   *follower

	folded, lost uint64
}

// follower is a handler, with what it believes in.
type follower struct {
	w        *world
	c        *Consumer
	name     string
	objects  map[string]*corev1.Pod
	uids     map[types.UID]string // What it was told of, and not of its deletion, over all redelivery.
	listedTo uint64
	listed   []ListedRange
	again    bool // It may be told deltas again, so they are not a chain.
}

func (w *world) open() {
	w.q = newLog(w.t, testdb.Open(w.t, w.path, testdb.Manual), Options{
		TailBytes: 2500, MaxBacklogBytes: 1, Seq: w.durable, OnCorrupt: func(error) { w.lost++ },
	})
}

func (w *world) change() {
	var ds []Delta
	for range 1 + w.rnd.Intn(3) {
		key := fmt.Sprintf("pod-%d", w.rnd.Intn(4))
		old := w.objects["ns/"+key]
		pod := func() *corev1.Pod {
			w.seq++
			return newPod(key, fmt.Sprint(w.seq))
		}
		d := Delta{Key: "ns/" + key}
		switch {
		case old == nil:
			w.uids++
			p := pod()
			p.UID = types.UID(fmt.Sprint(w.uids))
			d.Type, d.New = cache.Added, p
		case w.rnd.Intn(4) == 0:
			p := pod()
			p.UID = old.UID
			d.Type, d.New, d.FinalStateUnknown = cache.Deleted, p, w.rnd.Intn(2) == 0
		case w.rnd.Intn(4) == 0:
			w.seq++
			w.history = append(w.history, maps.Clone(w.objects))
			ds = append(ds, Delta{Seq: w.seq, Type: cache.Deleted, Key: d.Key, New: old, FinalStateUnknown: true, Replaced: true})
			w.uids++
			p := pod()
			p.UID = types.UID(fmt.Sprint(w.uids))
			d.Type, d.Old, d.New, d.Replaced = cache.Updated, old, p, true
		default:
			p := pod()
			p.UID = old.UID
			d.Type, d.Old, d.New = cache.Updated, old, p
		}
		d.Seq = w.seq
		ds = append(ds, d)
		if d.Type == cache.Deleted {
			delete(w.objects, d.Key)
		} else {
			w.objects[d.Key] = d.New.(*corev1.Pod)
		}
		w.history = append(w.history, maps.Clone(w.objects))
	}
	for i := range ds {
		ds[i].SizeBytes = record.EstimateSize(ds[i].New) + 100
	}
	publish(w.t, w.q, ds...)
}

func (w *world) flush() {
	commitAnew(w.t, w.q)
	w.durable = w.seq
}

// follow begins a handler, or goes on with one of an earlier process.
func (w *world) follow(name string) *follower {
	f := w.heard[name]
	if f == nil {
		f = &follower{w: w, name: name, objects: map[string]*corev1.Pod{}, uids: map[types.UID]string{}}
	}
	if name == "" {
		f.c = w.q.Plain()
	} else {
		c, err := w.q.Durable(name)
		if err != nil {
			w.t.Fatal(err)
		}
		f.c, w.heard[name] = c, f
	}
	if name == "" || !f.c.Known {
		f.everything()
	}
	return f
}

// everything is what the informer's listener does: deletions, then all objects.
func (f *follower) everything() {
	w := f.w
	w.flush()
	startsOver := f.c.StartsOver()
	for {
		ds, err := f.c.Undelivered()
		if err != nil {
			w.t.Fatal(err)
		}
		if len(ds) == 0 {
			break
		}
		for i := range ds {
			if d := &ds[i]; d.Type == cache.Deleted && (f.name != "" || !d.Replaced) {
				f.again = true
				f.tell(d)
			}
			f.c.Acknowledge(ds[i].Seq)
		}
	}
	f.listedTo = w.seq
	f.listed = nil
	if startsOver || f.again || w.rnd.Intn(2) == 0 { // Else deletions may come between, which are told later.
		f.chunk("", "", w.seq)
	} else {
		f.c.InitialListFrom(w.seq)
		f.chunk("", "ns/pod-2", w.seq)
		for range w.rnd.Intn(4) {
			w.change()
			synctest.Wait()
		}
		w.flush()
		f.chunk("ns/pod-2", "", w.seq)
		f.listedTo = w.seq
	}
	f.c.InitialListDone()
}

// chunk tells of the objects with keys from from to to.
func (f *follower) chunk(from, to string, seq uint64) {
	w := f.w
	tellChunk(w.t, f.c, from, to, seq)
	f.listed = append(f.listed, ListedRange{To: to, Last: to == "", Seq: seq})
	for key, pod := range w.objects {
		if key < from || (to != "" && key >= to) {
			continue
		}
		if known := f.objects[key]; f.name != "" && known != nil && known.UID != pod.UID {
			w.t.Errorf("%q: %s is replaced and nobody has said so", f.name, key)
		}
		f.objects[key], f.uids[pod.UID] = pod, key
	}
}

// toldByInitialList reports whether the initial list has told of a delta's outcome.
func (f *follower) toldByInitialList(d *Delta) bool {
	w := initialList{ranges: f.listed}
	return d.Seq <= f.listedTo && d.Seq <= w.seq(d.Key)
}

func (f *follower) tell(d *Delta) {
	t := f.w.t
	known := f.objects[d.Key]
	now, _ := d.New.(*corev1.Pod)
	if d.Type == cache.Deleted {
		if d.Replaced && f.name == "" {
			return
		}
		if now == nil || now.Namespace+"/"+now.Name != d.Key || now.UID == "" {
			t.Errorf("a deletion of %s with %v", d.Key, now)
		}
		if known != nil && known.UID != now.UID && !f.again && f.name != "" { // A plain one is told of an update to the other uid, or of neither.
			t.Errorf("%q: %s has uid %s, told of the deletion of %s", f.name, d.Key, known.UID, now.UID)
		}
		delete(f.objects, d.Key)
		delete(f.uids, now.UID)
		return
	}
	if now == nil {
		t.Fatalf("%q: delta %d without an object: %+v", f.name, d.Seq, d)
	}
	if known != nil && f.name != "" && known.UID != now.UID && !f.again {
		t.Errorf("%q: uid of %s changes from %s to %s without a deletion", f.name, d.Key, known.UID, now.UID)
	}
	if known != nil && f.w.number(known) > f.w.number(now) && !f.again {
		t.Errorf("D2: %q: %s goes back from %s to %s", f.name, d.Key, known.ResourceVersion, now.ResourceVersion)
	}
	old, _ := d.Old.(*corev1.Pod)
	told := old != nil && (!d.Replaced || f.name == "")
	// A plain one may be told of the deletion of a replaced object, where it is folded with
	// another, before the update to the new one.
	folded := f.name == "" && d.Replaced && known == nil
	if !f.again && !folded && (told != (known != nil) || (told && old.ResourceVersion != known.ResourceVersion)) {
		t.Errorf("%q: delta %d, %s of %s, replaced %v, has the old object %v, known is %v", f.name, d.Seq, d.Type, d.Key, d.Replaced, old, known)
	}
	f.objects[d.Key], f.uids[now.UID] = now, d.Key
}

func (w *world) number(pod *corev1.Pod) (n uint64) {
	if _, err := fmt.Sscan(pod.ResourceVersion, &n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// read takes what there is, up to n deltas.
func (f *follower) read(n int) {
	for n > 0 && available(f.c) {
		ds, err := f.c.Next()
		if errors.Is(err, ErrLost) {
			f.everything()
			continue
		}
		if err != nil {
			f.w.t.Fatal(err)
		}
		for i := range ds[:min(n, len(ds))] {
			if !f.toldByInitialList(&ds[i]) {
				f.tell(&ds[i])
			}
			f.c.Acknowledge(ds[i].Seq)
			n--
		}
	}
}

// crash goes on with a copy of the file, of which some may be damaged.
func (w *world) crash(damage int) {
	path := testsupport.Path(w.t)
	testsupport.CopyFile(w.t, w.q.db.Path(), path)
	if err := w.q.Stop(); err != nil {
		w.t.Fatal(err)
	}
	w.path = path
	w.seq, w.history = w.durable, w.history[:w.durable]
	w.objects = map[string]*corev1.Pod{}
	if w.durable > 0 {
		w.objects = maps.Clone(w.history[w.durable-1])
	}
	if damage > 0 {
		w.damage(damage)
	}
	w.open()
	for name, f := range w.heard {
		f.again, f.listedTo, f.listed = true, 0, nil
		w.follow(name)
	}
	w.plain = w.follow("")
}

// damage changes the file at w.path, which nobody has open.
func (w *world) damage(n int) {
	db := testdb.Open(w.t, w.path, testdb.Manual)
	seqs := onDisk(w.t, db, true)
	deltas := persist.Bucket{Space: testSpace, Name: deltasBucket}
	if _, err := db.Update(func(b *persist.Batch) {
		if w.rnd.Intn(5) == 0 { // Alone: if it is lost too, other losses are not noticed.
			b.Put(persist.Bucket{Space: testSpace, Name: stateBucket}, stateKey, persist.Bytes("\x00"))
			return
		}
		for range n {
			switch i := w.rnd.Intn(6); {
			case i == 0 && len(w.heard) > 0:
				b.Put(persist.Bucket{Space: testSpace, Name: cursorsBucket}, durablePrefix+"a", persist.Bytes("\x00"))
			case i == 1 && len(w.heard) > 0:
				b.Delete(persist.Bucket{Space: testSpace, Name: cursorsBucket}, durablePrefix+"b")
			case len(seqs) == 0:
			case i == 3:
				b.Put(deltas, deltaKey(seqs[w.rnd.Intn(len(seqs))]), persist.Bytes("\x07"))
			default:
				b.Delete(deltas, deltaKey(seqs[w.rnd.Intn(len(seqs))]))
			}
		}
	}); err != nil {
		w.t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// TestFoldedDeltasTellTheSame: whatever is folded, with consumers anywhere, over crashes
// and damage, each is told of every deletion of what it knows, and ends with what there is.
func TestFoldedDeltasTellTheSame(t *testing.T) {
	rnd := testsupport.Rand(t)
	folded, lost := uint64(0), uint64(0)
	for round := range 100 {
		if round >= testsupport.Rounds(15, 3) && folded > 0 && lost > 0 {
			return
		}
		seed := rnd.Int63()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{t: t, rnd: rand.New(rand.NewSource(seed)), path: testsupport.Path(t), objects: map[string]*corev1.Pod{}, heard: map[string]*follower{}}
				w.open()
				w.follow("a")
				w.follow("b")
				w.plain = w.follow("")
				for range 250 {
					w.step()
					if t.Failed() {
						t.FailNow()
					}
				}
				folded, lost = folded+w.folded, lost+w.lost
			})
		})
	}
	t.Errorf("%d deltas were folded, %d reported as damaged", folded, lost)
}

func (w *world) step() {
	followers := []*follower{w.heard["a"], w.heard["b"], w.plain}
	switch r := w.rnd.Intn(100); {
	case r < 50:
		w.change()
	case r < 75:
		followers[w.rnd.Intn(3)].read(1 + w.rnd.Intn(10))
	case r < 90:
		w.flush()
	case r < 93:
		f := followers[w.rnd.Intn(2)]
		f.c.Remove()
		f.again = true // What was read and not acknowledged is told again.
		w.follow(f.name)
	case r < 96:
		w.flush()
		for _, f := range followers {
			f.read(1 << 30)
			if !maps.EqualFunc(f.objects, w.objects, func(a, b *corev1.Pod) bool { return a.ResourceVersion == b.ResourceVersion }) {
				w.t.Errorf("%q believes in %v, there is %v", f.name, versionsOf(f.objects), versionsOf(w.objects))
			}
			for uid, key := range f.uids {
				if now := w.objects[key]; f.name != "" && (now == nil || now.UID != uid) {
					w.t.Errorf("D2: %q was never told of the deletion of %s with uid %s", f.name, key, uid)
				}
			}
			f.again = false
		}
	case r < 98:
		w.crash(0)
	default:
		w.crash(1 + w.rnd.Intn(3))
	}
	synctest.Wait()
	w.check()
}

func versionsOf(objects map[string]*corev1.Pod) (s []string) {
	for key, pod := range objects {
		s = append(s, key+"@"+pod.ResourceVersion)
	}
	slices.Sort(s)
	return s
}

// check compares what the log counts with its runs and its tail.
func (w *world) check() {
	q := w.q
	have := onDisk(w.t, q.db, false)
	q.mu.Lock()
	defer q.mu.Unlock()
	var want total
	runs := slices.Collect(q.runs.from(0))
	for i, r := range runs {
		if r.from > r.to || (i > 0 && r.from <= runs[i-1].to) || r.bytes < 0 {
			w.t.Fatalf("runs %v", runs)
		}
		for seq := r.from; seq <= r.to; seq++ {
			want.add(seq)
		}
	}
	if n := len(runs); n > 0 && w.lost == 0 { // Else damage may have taken some.
		w.folded += runs[n-1].to - runs[0].from + 1 - want.Count
	}
	for _, d := range q.tail {
		if d.stored {
			want.add(d.Seq)
		}
	}
	if want.Count != q.total.Count || want.Digest != q.total.Digest {
		w.t.Fatalf("counted %+v, there are %+v; runs %v, stored %v", q.total, want, runs, have)
	}
	if len(q.batchHeads) > 8 {
		w.t.Errorf("%d batch heads", len(q.batchHeads))
	}
}

// hangCommits makes the commit that is under way, or the next one, last until the test
// ends: nothing becomes durable, as on a disk that is full.
type hangingValue struct{ until chan struct{} }

func (v hangingValue) SizeBytes() int { return 1 }
func (v hangingValue) AppendTo(b []byte) ([]byte, error) {
	<-v.until
	return append(b, 0), nil
}

// TestWhatWaitsForACommitIsBoundedByTheNumberOfObjects: batchHeads, and deltas in memory.
func TestWhatWaitsForACommitIsBoundedByTheNumberOfObjects(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: 1, DurableDelay: 1, MaxPendingBytes: 1 << 40})
	q := newLog(t, db, Options{TailBytes: 1 << 20})
	c := durable(t, q, "d", false)
	c.InitialListDone()
	flush(t, q)
	hanging := hangingValue{make(chan struct{})}
	if _, err := db.Update(func(b *persist.Batch) {
		b.Put(persist.Bucket{Space: "other", Name: "other"}, "key", hanging)
	}); err != nil {
		t.Fatal(err)
	}
	const n = 30_000
	for seq := uint64(1); seq <= n; seq++ {
		old, pod := newPod("pod", fmt.Sprint(seq-1)), newPod("pod", fmt.Sprint(seq))
		d := Delta{Seq: seq, Type: cache.Updated, Key: "ns/pod", Old: old, New: pod, SizeBytes: 4000}
		if seq == 1 {
			d.Type, d.Old = cache.Added, nil
		}
		publish(t, q, d)
	}
	q.folder.Wait()
	q.mu.Lock()
	heads, pending := len(q.batchHeads), q.folding.pending
	q.mu.Unlock()
	if heads > 10 {
		t.Errorf("%d batch heads", heads)
	}
	if pending > 2*foldPendingMaxBytes {
		t.Errorf("%d MB wait in memory", pending>>20)
	}
	if left := len(onDisk(t, db, false)); left > n*2/3 {
		t.Errorf("%d of %d deltas wait", left, n)
	}
	close(hanging.until)
	flush(t, q)
	last, old := uint64(0), "0"
	for last < n {
		ds, err := c.Next()
		if err != nil {
			t.Fatal(err)
		}
		for i := range ds {
			was := "0"
			if ds[i].Old != nil {
				was = ds[i].Old.(*corev1.Pod).ResourceVersion
			}
			if was != old {
				t.Fatalf("delta %d has the old version %s, expected %s", ds[i].Seq, was, old)
			}
			last, old = ds[i].Seq, ds[i].New.(*corev1.Pod).ResourceVersion
			c.Acknowledge(last)
		}
	}
	if old != fmt.Sprint(n) {
		t.Errorf("the last version is %s", old)
	}
	if err := q.Stop(); err != nil {
		t.Fatal(err)
	}
}
