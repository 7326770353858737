package queue

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
)

// TestTheLogBehavesLikeItsModel makes random use of a log, over restarts and
// crashes. The model is a list of deltas and a cursor for each consumer: all
// are told of what is behind their cursors, in order; what all have passed is
// removed, and nothing else (D2), and what must survive a crash is stored; the
// tail stays within its bound (D6); durable ones are told only of what is durable
// (D2).
func TestTheLogBehavesLikeItsModel(t *testing.T) {
	rnd := testsupport.Rand(t)
	for range testsupport.Rounds(12, 1) {
		seed := rnd.Int63()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &logModel{t: t, rnd: rand.New(rand.NewSource(seed)), path: testsupport.Path(t)}
				m.file.cursors, m.must = map[string]uint64{}, map[uint64]bool{}
				m.open()
				for range 400 {
					m.step()
				}
			})
		})
	}
}

const modelTailBytes = 1500

type logModel struct {
	t    *testing.T
	rnd  *rand.Rand
	path string
	q    *Log

	seqs    []uint64        // Of all deltas that were ever published.
	must    map[uint64]bool // Those that must be stored: what came while there was a name.
	durable int             // So many of seqs have been in the file, or were not to be stored.
	head    uint64

	cursors   map[string]uint64    // Of durable names.
	consumers map[*Consumer]uint64 // Present ones.
	file      struct {             // The same, as the file has it.
		head    uint64
		cursors map[string]uint64
		deltas  []uint64 // They may be in the file.
	}
}

func (m *logModel) open() {
	m.head, m.cursors = m.file.head, maps.Clone(m.file.cursors)
	m.consumers = map[*Consumer]uint64{}
	m.q = newLog(m.t, testdb.Open(m.t, m.path, testdb.Manual), Options{TailBytes: modelTailBytes, Seq: m.head})
	if got := m.q.Head(); got != m.head {
		m.t.Fatalf("the head is %d, expected %d", got, m.head)
	}
	m.checkFile(onDisk(m.t, m.q.db, true))
}

// behind are the deltas behind a cursor, up to the head.
func (m *logModel) behind(cursor uint64) []uint64 {
	i, _ := slices.BinarySearch(m.seqs, cursor+1)
	return m.seqs[i:]
}

func (m *logModel) any() *Consumer {
	var all []*Consumer
	for c := range m.consumers {
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *Consumer) int { // Maps have an order of their own.
		return 2*b2i(a.name > b.name || (a.name == b.name && m.consumers[a] > m.consumers[b])) - 1
	})
	return all[m.rnd.Intn(len(all))]
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (m *logModel) step() {
	switch r := m.rnd.Intn(100); {
	case r < 35:
		m.publish()
	case r < 70:
		if c := m.any(); c != nil {
			m.read(c)
		}
	case r < 76:
		m.addPlain()
	case r < 80:
		m.name()
	case r < 84:
		if c := m.any(); c != nil {
			delete(m.consumers, c)
			c.Remove()
		}
	case r < 85:
		m.forget()
	case r < 94:
		m.commit()
	case r < 97:
		m.restart()
	default:
		m.crash()
	}
	m.check()
}

func (m *logModel) addPlain() {
	c := m.q.Plain()
	if c.StartsOver() || c.Cursor() != m.head {
		m.t.Fatalf("a plain consumer starts over: %v, from %d; the head is %d", c.StartsOver(), c.Cursor(), m.head)
	}
	m.consumers[c] = c.Cursor()
}

func (m *logModel) publish() {
	var ds []Delta
	for range 1 + m.rnd.Intn(4) {
		m.head++
		if m.rnd.Intn(5) == 0 {
			m.head += uint64(m.rnd.Intn(3)) // Numbers without a delta.
		}
		d := numbered(m.head)
		ds = append(ds, d)
		m.seqs = append(m.seqs, m.head)
		m.must[m.head] = len(m.cursors) > 0
	}
	publish(m.t, m.q, ds...)
}

func (m *logModel) read(c *Consumer) {
	n := 1 + m.rnd.Intn(8)
	want := m.behind(m.consumers[c])
	if c.durable {
		i, _ := slices.BinarySearch(want, m.durableHead()+1)
		want = want[:i]
	}
	got := next(m.t, c, n)
	wantSeqs(m.t, "told", want[:min(n, len(want))], got)
	m.consumers[c] = c.Cursor()
	if c.name != "" {
		m.cursors[c.name] = c.Cursor()
	}
}

func (m *logModel) durableHead() uint64 {
	if m.durable == 0 {
		return 0
	}
	return m.seqs[m.durable-1]
}

func (m *logModel) name() {
	name := fmt.Sprint(m.rnd.Intn(3))
	for c := range m.consumers {
		if c.name == name {
			return
		}
	}
	cursor, seen := m.cursors[name]
	c, err := m.q.Durable(name)
	if err != nil {
		m.t.Fatal(err)
	}
	if c.Known != seen {
		m.t.Fatalf("name %s is known: %v, expected %v", name, c.Known, seen)
	}
	if !seen {
		c.InitialListFrom(m.head)
		c.InitialListDone()
		cursor = m.head
	}
	if got := len(m.behind(c.Cursor())); got != len(m.behind(cursor)) {
		m.t.Fatalf("name %s begins at %d, expected %d", name, c.Cursor(), cursor)
	}
	m.cursors[name], m.consumers[c] = c.Cursor(), c.Cursor()
}

func (m *logModel) forget() {
	name := fmt.Sprint(m.rnd.Intn(3))
	for c := range m.consumers {
		if c.name == name {
			return
		}
	}
	if err := m.q.Forget(name); err != nil {
		m.t.Fatal(err)
	}
	delete(m.cursors, name)
}

// commit makes one, which removes everything that all have passed, and nothing
// else.
func (m *logModel) commit() {
	commitAnew(m.t, m.q)
	m.written()
	m.checkFile(onDisk(m.t, m.q.db, true))
}

// checkFile wants the deltas in the file to be those that must be there, and others
// only if somebody has still to be told of them.
func (m *logModel) checkFile(disk []uint64) {
	m.t.Helper()
	for _, seq := range disk {
		if !slices.Contains(m.file.deltas, seq) {
			m.t.Fatalf("delta %d is in the file, all have acknowledged it", seq)
		}
	}
	for _, seq := range m.file.deltas {
		if m.must[seq] && !slices.Contains(disk, seq) {
			m.t.Fatalf("delta %d is not in the file; there are %v", seq, disk)
		}
	}
}

// written notes what a commit has put into the file.
func (m *logModel) written() {
	m.durable = len(m.seqs)
	m.file.head = m.head
	m.file.cursors = maps.Clone(m.cursors)
	m.file.deltas = nil
	for _, seq := range m.seqs {
		if seq > m.floor() {
			m.file.deltas = append(m.file.deltas, seq)
		}
	}
}

// floor is up to where all have acknowledged.
func (m *logModel) floor() uint64 {
	floor := m.head
	for _, at := range m.consumers {
		floor = min(floor, at)
	}
	for _, at := range m.cursors {
		floor = min(floor, at)
	}
	return floor
}

func (m *logModel) restart() {
	if err := m.q.Stop(); err != nil {
		m.t.Fatal(err)
	}
	if err := m.q.db.Close(); err != nil {
		m.t.Fatal(err)
	}
	maps.DeleteFunc(m.consumers, func(c *Consumer, _ uint64) bool { return c.name == "" }) // They hold nothing any more.
	m.written()
	m.open()
}

// crash goes on with a copy of the file.
func (m *logModel) crash() {
	path := testsupport.Path(m.t)
	testsupport.CopyFile(m.t, m.q.db.Path(), path)
	m.path = path
	m.seqs = m.seqs[:m.durable]
	m.open()
}

func (m *logModel) check() {
	m.t.Helper()
	q := m.q
	q.mu.Lock()
	size, counted := 0, q.tailBytes
	tail, runs := slices.Clone(q.tail), slices.Collect(q.runs.from(0))
	q.mu.Unlock()
	for i, d := range tail {
		size += d.SizeBytes
		if i > 0 && d.Seq <= tail[i-1].Seq {
			m.t.Fatalf("the tail has %d behind %d", d.Seq, tail[i-1].Seq)
		}
	}
	if size != counted || size > modelTailBytes {
		m.t.Fatalf("the tail has %d bytes, counted %d", size, counted)
	}
	for i, r := range runs {
		if r.from > r.to || (i > 0 && r.from <= runs[i-1].to) {
			m.t.Fatalf("runs %v", runs)
		}
	}
	// D2, in memory and in the file together.
	have := onDisk(m.t, q.db, false)
	unstored := map[uint64]bool{}
	for _, d := range tail {
		unstored[d.Seq] = !d.stored
	}
	for _, seq := range m.behind(m.floor()) {
		if _, found := slices.BinarySearch(have, seq); !found && (m.must[seq] || !unstored[seq]) {
			m.t.Fatalf("delta %d is gone, not all have acknowledged it; floor %d, there are %v", seq, m.floor(), have)
		}
	}
}
