package queue

import (
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	corev1 "k8s.io/api/core/v1"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
)

// TestWhoeverReadsTheLogBelievesWhatIsTrue makes random use of a log, over restarts and crashes, with bounds that are
// small or not. The model is a store whose every state is known. Each consumer has a believer, which takes what it gets
// for true. The believer of a name outlives crashes. Once it has read everything, it believes what the store has, or
// what the file has if it is durable (D1, D2, D3). If deletions were dropped because too many waited (D6), it first
// gets what Known would find. The tail stays within its bound, and nothing is left in the file that nobody needs.
func TestWhoeverReadsTheLogBelievesWhatIsTrue(t *testing.T) {
	rnd := testsupport.Rand(t)
	for range testsupport.Rounds(60, 4) {
		seed := rnd.Int63()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &logModel{t: t, rnd: rand.New(rand.NewSource(seed)), path: testsupport.Path(t), names: map[string]*believer{}}
				m.backlog = []int64{-1, 3000, 800}[m.rnd.Intn(3)]
				m.states = []state{{}}
				m.open()
				for range 300 {
					m.step()
				}
			})
		})
	}
}

const modelTailBytes = 1500

// A state is what the store has: the resourceVersion of each object, by key.
type state map[string]string

type believer struct {
	name     string
	believes state
	c        *Consumer
}

type logModel struct {
	t       *testing.T
	rnd     *rand.Rand
	path    string
	backlog int64
	q       *Log

	states  []state // After each write; the index is its Seq.
	durable int     // The last one that the file has.

	names   map[string]*believer // Also those that have no consumer now.
	present []*believer
}

func (m *logModel) open() {
	m.present = nil
	m.q = newLog(m.t, testdb.Open(m.t, m.path, testdb.Manual), Options{TailBytes: modelTailBytes, MaxBacklogBytes: m.backlog})
}

func (m *logModel) step() {
	switch r := m.rnd.Intn(100); {
	case r < 40:
		m.publish()
	case r < 70:
		if len(m.present) > 0 {
			m.read(m.present[m.rnd.Intn(len(m.present))])
		}
	case r < 75:
		m.present = append(m.present, &believer{believes: state{}, c: m.q.Plain()})
	case r < 80:
		m.name()
	case r < 84:
		if len(m.present) > 0 {
			i := m.rnd.Intn(len(m.present))
			remove(m.t, m.present[i].c)
			m.present = slices.Delete(m.present, i, i+1)
		}
	case r < 85:
		m.forget()
	case r < 94:
		m.flush()
	case r < 97: // A restart.
		m.flush()
		m.q.Stop()
		if err := m.q.db.Close(); err != nil {
			m.t.Fatal(err)
		}
		m.open()
	default: // A crash.
		path := testsupport.Path(m.t)
		testsupport.CopyFile(m.t, m.q.db.Path(), path)
		m.path = path
		m.states = m.states[:m.durable+1]
		m.open()
	}
	if size := TailBytes(m.q); size > modelTailBytes+1200 {
		m.t.Fatalf("the tail has %d bytes", size)
	}
}

func (m *logModel) flush() {
	flush(m.t, m.q)
	m.durable = len(m.states) - 1
	need := uint64(1 << 62)
	m.q.mu.Lock()
	for p := range m.q.positions {
		if need = min(need, p.from); p.StartsOver {
			need = min(need, p.Cursor)
		}
	}
	m.q.mu.Unlock()
	for _, number := range onDisk(m.t, m.q.db, true) {
		if number <= need && number+3 <= m.q.Head() { // Those of the last batch are removed with the next one.
			m.t.Fatalf("delta %d is in the file, and nobody needs it", number)
		}
	}
}

// publish makes one batch of up to three changes.
func (m *logModel) publish() {
	var ds []Delta
	for range 1 + m.rnd.Intn(3) {
		before := m.states[len(m.states)-1]
		after, seq := maps.Clone(before), uint64(len(m.states))
		key := fmt.Sprintf("ns/%d", m.rnd.Intn(9))
		pod := func(rv string) *corev1.Pod {
			p := newPod(key[3:], rv)
			p.UID = types.UID("u" + rv)
			return p
		}
		old, exists := before[key]
		d := Delta{Seq: seq, Key: key, Type: cache.Added, New: pod(fmt.Sprint(seq))}
		switch {
		case exists && m.rnd.Intn(3) == 0:
			d.Type, d.New, d.FinalStateUnknown = cache.Deleted, pod(old), m.rnd.Intn(2) == 0
			delete(after, key)
		case exists:
			d.Type, d.Old, d.Replaced = cache.Updated, pod(old), m.rnd.Intn(4) == 0
			after[key] = fmt.Sprint(seq)
		default:
			after[key] = fmt.Sprint(seq)
		}
		d.SizeBytes = sizeOf(d.New)
		ds, m.states = append(ds, d), append(m.states, after)
	}
	publish(m.t, m.q, ds...)
}

// read has a believer read some of what there is.
func (m *logModel) read(b *believer) {
	for range 1 + m.rnd.Intn(3) {
		ds, err := b.c.ready()
		if errors.Is(err, ErrStartOver) {
			if !m.list(b) {
				return
			}
			continue
		}
		if err != nil {
			m.t.Fatal(err)
		}
		if len(ds) == 0 {
			m.check(b)
			return
		}
		ds = ds[:1+m.rnd.Intn(len(ds))]
		for i := range ds {
			if !b.c.Covers(&ds[i]) {
				b.deliver(&ds[i])
			}
		}
		acknowledge(m.t, b.c, ds)
	}
}

func (b *believer) deliver(d *Delta) {
	if d.Type == cache.Deleted {
		delete(b.believes, d.Key)
		return
	}
	b.believes[d.Key] = d.New.(*corev1.Pod).ResourceVersion
}

// list gives a believer an initial list, in chunks of a few keys, with changes between them. It reports whether it came
// to the end.
func (m *logModel) list(b *believer) bool {
	t := m.t
	if b.c.durable {
		m.flush()
	}
	begun, err := b.c.BeginList()
	if err != nil {
		t.Fatal(err)
	}
	m.deletions(b, 0, begun, func(*Delta) bool { return true })
	bounds := []string{"", "ns/3", "ns/6", "\xff"}
	for i, from := range bounds[:3] {
		for range m.rnd.Intn(3) {
			m.publish()
		}
		if m.rnd.Intn(3) == 0 {
			m.flush()
		}
		if m.rnd.Intn(30) == 0 {
			return false
		}
		seq := len(m.states) - 1
		if b.c.durable {
			seq = m.durable
		}
		to := bounds[i+1]
		m.deletions(b, begun, m.q.Head(), func(d *Delta) bool { return d.Seq <= uint64(seq) && d.Key >= from && d.Key < to })
		for key, rv := range m.states[seq] {
			if key >= from && key < to {
				b.believes[key] = rv
			}
		}
		b.c.Listed(to, i == 2, uint64(seq))
		if m.backlog > 0 { // Known.
			for key := range b.believes {
				if _, exists := m.states[seq][key]; !exists && key >= from && key < to {
					delete(b.believes, key)
				}
			}
		}
	}
	if err := b.c.EndList(); err != nil {
		t.Fatal(err)
	}
	return true
}

func (m *logModel) deletions(b *believer, after, upTo uint64, concerns func(*Delta) bool) {
	for {
		ds, err := b.c.Deletions(after, upTo)
		if err != nil {
			m.t.Fatal(err)
		}
		if len(ds) == 0 {
			return
		}
		for i := range ds {
			if after = ds[i].Number; concerns(&ds[i]) {
				b.deliver(&ds[i])
			}
		}
	}
}

// check compares what a believer that has read all believes with what is true.
func (m *logModel) check(b *believer) {
	seq := len(m.states) - 1
	if b.c.durable {
		seq = m.durable
	}
	if !maps.Equal(b.believes, m.states[seq]) {
		m.t.Fatalf("%q believes %v, at %d there is %v", b.name, b.believes, seq, m.states[seq])
	}
}

func (m *logModel) name() {
	name := fmt.Sprint(m.rnd.Intn(3))
	c, err := m.q.Durable(Handlers, name, "")
	if errors.Is(err, ErrInUse) {
		return
	}
	if err != nil {
		m.t.Fatal(err)
	}
	b := m.names[name]
	if b == nil {
		b = &believer{name: name, believes: state{}}
		m.names[name] = b
	}
	b.c = c
	m.present = append(m.present, b)
}

func (m *logModel) forget() {
	name := fmt.Sprint(m.rnd.Intn(3))
	if err := m.q.Forget(name); err == nil {
		m.flush()
		delete(m.names, name)
	} else if !errors.Is(err, ErrInUse) {
		m.t.Fatal(err)
	}
}
