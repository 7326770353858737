package persist

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// contentsOf is the content of some buckets.
type contentsOf map[string]map[string]string

func (c contentsOf) clone() contentsOf {
	out := contentsOf{}
	for name, m := range c {
		out[name] = maps.Clone(m)
	}
	return out
}

var modelBuckets = []string{"a", "b", "deltas"}

// model makes random batches, and knows what a DB must have after each.
type model struct {
	rnd   *rand.Rand
	state contentsOf
	// history has the state after each batch, from the oldest one that a
	// crash, or a reader of the file, may still see.
	history []contentsOf
	first   uint64
	next    int // Number of the next new key.
}

func newModel(rnd *rand.Rand) *model {
	m := &model{rnd: rnd, state: contentsOf{}}
	for _, name := range modelBuckets {
		m.state[name] = map[string]string{}
	}
	m.history = []contentsOf{m.state.clone()}
	return m
}

// at is the state after a batch.
func (m *model) at(batch uint64) contentsOf { return m.history[batch-m.first] }

// forget drops the history before a batch.
func (m *model) forget(batch uint64) {
	m.history = m.history[batch-m.first:]
	m.first = batch
}

// restart begins to count anew, as a DB that is opened does.
func (m *model) restart(state contentsOf) {
	m.state, m.first, m.history = state.clone(), 0, []contentsOf{state.clone()}
}

func (m *model) value() string {
	n := m.rnd.Intn(40)
	if m.rnd.Intn(50) == 0 {
		n = m.rnd.Intn(20_000) // Has overflow pages.
	}
	return repeat(string(rune('a'+m.rnd.Intn(26))), n)
}

// batch returns the next batch. Its number in the DB is m.first+len(m.history)
// before it is applied.
func (m *model) batch() func(*Batch) {
	var ops []func(*Batch)
	for range m.rnd.Intn(12) {
		name := modelBuckets[m.rnd.Intn(2)]
		bucket, key, value := Bucket{"space", name}, strconv.Itoa(m.rnd.Intn(60)), m.value()
		if m.rnd.Intn(30) == 0 {
			key = ""
		}
		switch r := m.rnd.Intn(100); {
		case r < 60:
			ops = append(ops, func(b *Batch) { b.Put(bucket, key, []byte(value)) })
			m.state[name][key] = value
		case r < 90:
			ops = append(ops, func(b *Batch) { b.Delete(bucket, key) })
			delete(m.state[name], key)
		case r < 92:
			ops = append(ops, func(b *Batch) { b.Drop(bucket) })
			clear(m.state[name])
		default:
			ops = append(ops, func(*Batch) {})
		}
	}
	// A queue: new keys at one end, removed at the other.
	deltas := Bucket{"space", "deltas"}
	for range m.rnd.Intn(4) {
		key, value := fmt.Sprintf("%08d", m.next), m.value()
		m.next++
		ops = append(ops, func(b *Batch) { b.PutNew(deltas, key, []byte(value)) })
		m.state["deltas"][key] = value
	}
	for _, key := range slices.Sorted(maps.Keys(m.state["deltas"])) {
		if n, _ := strconv.Atoi(key); n < m.next-m.rnd.Intn(30) {
			ops = append(ops, func(b *Batch) { b.Delete(deltas, key) })
			delete(m.state["deltas"], key)
		}
	}
	m.history = append(m.history, m.state.clone())
	return func(b *Batch) {
		for _, op := range ops {
			op(b)
		}
	}
}

// read returns all that a snapshot has.
func read(s *Snapshot) (contentsOf, error) {
	got := contentsOf{}
	for _, name := range modelBuckets {
		m, err := scan(s, name, "")
		if err != nil {
			return nil, err
		}
		got[name] = m
	}
	return got, nil
}

// TestTheDBBehavesLikeAMap applies random batches, and compares what readers
// see with a map: by key, by snapshots taken now and held for a while, in the
// file, and after a restart.
func TestTheDBBehavesLikeAMap(t *testing.T) {
	rnd := testsupport.Rand(t)
	for _, memory := range []bool{false, true} {
		t.Run(fmt.Sprintf("memory only: %v", memory), func(t *testing.T) {
			path := testsupport.Path(t)
			if memory {
				path = blockedPath(t)
			}
			m := newModel(rand.New(rand.NewSource(rnd.Int63())))
			w := &modelWalk{t: t, m: m, path: path, memory: memory}
			w.open()
			for range testsupport.Rounds(3000, 400) {
				w.step()
			}
			w.release()
			if err := w.db.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

type heldSnapshot struct {
	s     *Snapshot
	want  contentsOf
	until int
}

type modelWalk struct {
	t      *testing.T
	m      *model
	db     *DB
	path   string
	memory bool
	held   []heldSnapshot
	steps  int
}

func (w *modelWalk) open() {
	o := Options{CommitInterval: time.Duration(w.m.rnd.Intn(3)) * time.Millisecond, MaxPendingBytes: 2 * int64(1+w.m.rnd.Intn(50_000)), Logger: &testsupport.Quiet}
	db, err := Open(w.t.Context(), w.path, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.db = db
	w.t.Cleanup(func() {
		_ = db.Close()
		if !w.memory {
			checkFile(w.t, w.path)
		}
	})
	if db.MemoryOnly() != w.memory {
		w.t.Fatalf("memory only: %v", db.Err())
	}
}

func (w *modelWalk) step() {
	t, m, db := w.t, w.m, w.db
	w.steps++
	for len(w.held) > 0 && w.held[0].until <= w.steps {
		w.compare(w.held[0].s, w.held[0].want, "held snapshot")
		w.held = w.held[1:]
	}
	switch r := m.rnd.Intn(1000); {
	case r < 600:
		want := m.first + uint64(len(m.history))
		db.WaitForRoom()
		if n := apply(t, db, m.batch()); n != want {
			t.Fatalf("batch %d, expected %d", n, want)
		}
	case r < 750:
		name, key := modelBuckets[m.rnd.Intn(3)], strconv.Itoa(m.rnd.Intn(60))
		if name == "deltas" {
			key = fmt.Sprintf("%08d", max(0, m.next-m.rnd.Intn(30)))
		}
		v, found, err := lookup(db, Bucket{"space", name}, key)
		want, exists := m.state[name][key]
		if err != nil || found != exists || v != want {
			t.Fatalf("%s/%s is %.20q, %v, %v, expected %.20q, %v", name, key, v, found, err, want, exists)
		}
	case r < 830:
		s := snapshot(t, db, false)
		w.held = append(w.held, heldSnapshot{s, m.state.clone(), w.steps + m.rnd.Intn(40)})
	case r < 930:
		w.durable()
	case r < 980:
		flush(t, db)
		if got := db.Durable(); got != db.Applied() {
			t.Fatalf("durable up to %d after a flush, expected %d", got, db.Applied())
		}
		m.forget(db.Durable())
	case r < 990:
		w.release()
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if w.memory {
			m.restart(newModel(m.rnd).state)
		} else {
			m.restart(m.state)
		}
		w.open()
	default:
		w.compare(snapshot(t, w.db, false), m.state, "snapshot")
	}
}

// durable checks that the file has the state after one batch, and that this batch is
// not older than DB.Durable said.
func (w *modelWalk) durable() {
	from := w.db.Durable()
	s := snapshot(w.t, w.db, true)
	got, err := read(s)
	s.Close()
	if err != nil {
		w.t.Fatal(err)
	}
	to := w.db.Applied()
	for batch := from; batch <= to; batch++ {
		if cmp.Equal(w.m.at(batch), got) {
			w.m.forget(from)
			return
		}
	}
	w.t.Fatalf("the file has what no batch from %d to %d left", from, to)
}

func (w *modelWalk) release() {
	for _, h := range w.held {
		w.compare(h.s, h.want, "held snapshot")
	}
	w.held = nil
}

func (w *modelWalk) compare(s *Snapshot, want contentsOf, what string) {
	defer s.Close()
	got, err := read(s)
	if err != nil {
		w.t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Fatalf("%s: -want +got:\n%.2000s", what, diff)
	}
	name := modelBuckets[w.m.rnd.Intn(3)]
	from := strconv.Itoa(w.m.rnd.Intn(60))
	part, err := scan(s, name, from)
	if err != nil {
		w.t.Fatal(err)
	}
	wantPart := maps.Clone(want[name])
	maps.DeleteFunc(wantPart, func(k, _ string) bool { return k < from })
	if diff := cmp.Diff(wantPart, part); diff != "" {
		w.t.Fatalf("%s from %q: -want +got:\n%.2000s", what, from, diff)
	}
}
