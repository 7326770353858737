package processor

import (
	"maps"
	"math"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/queue"
)

// startOver delivers the pending deletions, and OnAdd of every object, see [queue.Consumer.BeginList]. It first waits
// until the informer has synced: no handler is called for objects that are gone. While the handler is called for one
// chunk, the next chunk is read. No snapshot is held during a callback.
func (l *listener) startOver() bool {
	if !waitFor(l, l.p.opts.Synced) {
		return false
	}
	l.noteRestart(l.consumer.Why())
	begun, err := l.consumer.BeginList()
	if err != nil {
		return l.failed(err)
	}
	if !l.deliverDeletions(0, begun, func(*queue.Delta) bool { return true }) {
		return false
	}
	defer l.p.store.Ballast()()
	deliveredSeq := uint64(math.MaxUint64)
	ok := l.eachChunk(true, func(from string, c indexer.Chunk) bool {
		covered := func(d *queue.Delta) bool {
			return d.Seq <= c.Seq && d.Key >= from && (c.Done || d.Key < c.Next)
		}
		if !l.deliverDeletions(begun, math.MaxUint64, covered) {
			return false
		}
		if !l.deliverObjects(c, cache.Added, func(obj any) { l.handler.OnAdd(obj, true) }) {
			return false
		}
		l.consumer.Listed(c.Next, c.Done, c.Seq)
		deliveredSeq = min(deliveredSeq, c.Seq)
		return true
	})
	if !ok {
		return false
	}
	l.deliveredSeq = max(l.deliveredSeq, deliveredSeq)
	if err := l.consumer.EndList(); err != nil {
		return l.failed(err)
	}
	l.askKnown()
	return true
}

// noteRestart counts that the handler starts over, and reports it. That a plain handler is new is not reported.
func (l *listener) noteRestart(cause string) {
	restarts := map[string]int64{}
	if before := l.restarts.Load(); before != nil {
		restarts = maps.Clone(*before)
	}
	restarts[cause]++
	l.restarts.Store(&restarts)
	if l.durable || cause != queue.CauseNew {
		l.p.opts.OnStartOver(l.name, cause, l.consumer.Behind())
	}
}

// deliverDeletions delivers the deletions behind after, up to upTo, for which concerns returns true.
func (l *listener) deliverDeletions(after, upTo uint64, concerns func(*queue.Delta) bool) bool {
	for {
		ds, err := l.consumer.Deletions(after, upTo)
		if err != nil {
			if !l.failed(err) {
				return false
			}
			continue
		}
		if len(ds) == 0 {
			return true
		}
		for i := range ds {
			d := &ds[i]
			after = d.Number
			if concerns(d) && !l.call(d, func() { l.handler.OnDelete(d.Object()) }) {
				return false
			}
		}
	}
}

// deliverObjects calls f for each object of a chunk.
func (l *listener) deliverObjects(c indexer.Chunk, t cache.DeltaType, f func(obj any)) bool {
	d := queue.Delta{Type: t}
	for i, obj := range c.Objects {
		if obj == nil { // See resync.
			continue
		}
		d.Key = c.Keys[i]
		if !l.call(&d, func() { f(obj) }) {
			return false
		}
	}
	return true
}

// eachChunk calls f with all objects, in chunks, until f returns false. If whole, no object may be missing: a chunk
// with an unreadable object is read again until a relist has brought the object.
func (l *listener) eachChunk(whole bool, f func(from string, c indexer.Chunk) bool) bool {
	begun := l.p.enter()
	defer l.p.leave()
	from := ""
	c := l.p.readChunk(from, l.durable, begun)
	for {
		if !waitFor(l, c.done) {
			return false
		}
		if !c.sees(begun) {
			c = l.p.readChunk(from, l.durable, begun)
			continue
		}
		err := c.err
		if err == nil && whole && c.chunk.LeftOut != nil {
			err = errNotListed
		}
		if err != nil {
			if !l.failed(err) {
				return false
			}
			c = l.p.readChunk(from, l.durable, moment{c.id, math.MaxUint64})
			continue
		}
		read := c.chunk
		if !read.Done {
			c = l.p.readChunk(read.Next, l.durable, begun)
		}
		if !f(from, read) {
			return false
		}
		if read.Done {
			return true
		}
		from = read.Next
	}
}

// chunks holds the last chunks. Listeners that go through all objects at about the same time share them, and the
// objects, as client-go's listeners do. Processor.mu guards it.
type chunks struct {
	listeners int // How many listeners deliver chunks now.
	last      uint64
	byKey     map[chunkKey]*chunk
	keys      []chunkKey    // Oldest first.
	reads     chan struct{} // Full while chunkReads chunks are being read.
}

const (
	// maxChunks is how many chunks are kept.
	maxChunks = 4
	// chunkReads is how many chunks are read at once. More would only wait for locks that the next event needs, too. A
	// chunk that waits to be read is shared by all listeners that come meanwhile.
	chunkReads = 2
)

type chunkKey struct {
	from    string
	durable bool
}

// A chunk is read by a goroutine of its own. Chunks with greater ids were asked for later.
type chunk struct {
	id    uint64
	done  chan struct{} // Closed when it is read.
	chunk indexer.Chunk
	err   error
}

// enter is called by a listener that begins to deliver chunks. It returns the present moment.
func (p *Processor) enter() moment {
	seq := p.store.Seq()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chunks.listeners++
	return moment{p.chunks.last, seq}
}

func (p *Processor) leave() {
	cs := &p.chunks
	p.mu.Lock()
	defer p.mu.Unlock()
	if cs.listeners--; cs.listeners == 0 {
		clear(cs.byKey)
		cs.keys = nil
	}
}

// A moment comes after the request for the chunk id, and after the write seq.
type moment struct{ id, seq uint64 }

// sees reports whether a chunk has all writes up to a moment: it was asked for later, or nothing was written in
// between. While a chunk is being read, the answer is not known. sees then returns true.
func (c *chunk) sees(m moment) bool {
	select {
	case <-c.done:
		return c.id > m.id || c.err == nil && c.chunk.Seq >= m.seq
	default:
		return true
	}
}

// readChunk returns a chunk that begins at from, and that sees m or is being read.
func (p *Processor) readChunk(from string, durable bool, m moment) *chunk {
	cs, key := &p.chunks, chunkKey{from, durable}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := cs.byKey[key]; c != nil && c.sees(m) {
		return c
	} else if c == nil {
		if cs.keys = append(cs.keys, key); len(cs.keys) > maxChunks {
			delete(cs.byKey, cs.keys[0])
			cs.keys = cs.keys[1:]
		}
	}
	cs.last++
	c := &chunk{id: cs.last, done: make(chan struct{})}
	cs.byKey[key] = c
	p.running.Go(func() {
		defer close(c.done)
		cs.reads <- struct{}{}
		defer func() { <-cs.reads }()
		c.chunk, c.err = p.store.Chunk(from, durable)
	})
	return c
}
