package processor

import (
	"slices"
	"sync"
	"time"

	"github.com/warmwatch/warmwatch/internal/indexer"
	"github.com/warmwatch/warmwatch/queue"
)

const (
	// chunksAhead is how many chunks are read and decoded before they are told.
	chunksAhead = 2
	// chunkReads is how many walks of an informer read a chunk at once. More would only wait
	// for locks that the next event needs too.
	chunkReads = 4
	// walkPatience is how long a walk waits for a listener whose handler is slow, before it goes
	// on without it.
	walkPatience = 100 * time.Millisecond
)

// A walk reads and decodes the store in chunks, for listeners that are told of all objects.
// Those that begin their initial lists at about the same time share one, and the objects, as
// client-go's listeners do. One that is slow, or comes late, has its own.
type walk struct {
	p         *Processor
	durable   bool
	abandoned chan struct{} // Closed when the last listener has left.
	moved     chan struct{} // Capacity 1, see noteMoved.
	// floor is what the walk's listeners were told up to, before its next chunk is read. A chunk
	// with a lower Seq is of a file that has lost commits: it has seen that these writes are undone.
	floor uint64
	// walkers is guarded by p.walksMu until the walk sends its first chunk, and does not grow then.
	walkers []*walker
	present int // How many of them have not left. Guarded by p.walksMu.
}

// A walker is one listener's part in a walk.
type walker struct {
	walk   *walk
	chunks chan *walkedChunk // Closed when the walk has ended, or goes on without this listener.
	left   chan struct{}
	leave  func() // Closes left, once.
}

// A walkedChunk is a chunk that begins at from.
type walkedChunk struct {
	from   string
	chunk  indexer.Chunk // Not decoded; decode returns it decoded.
	err    error
	decode func() indexer.Chunk
	epoch  uint64 // See queue.Log.Epoch.
}

// join returns a part in a walk of the whole store that has not sent anything yet.
func (p *Processor) join(durable bool) *walker {
	p.walksMu.Lock()
	defer p.walksMu.Unlock()
	w := p.walks[durable]
	if w == nil {
		w = p.newWalk(durable)
		p.walks[durable] = w
		defer p.running.Go(func() { w.run("") })
	}
	return w.addLocked()
}

func (p *Processor) newWalk(durable bool) *walk {
	return &walk{p: p, durable: durable, abandoned: make(chan struct{}), moved: make(chan struct{}, 1)}
}

// walkFrom returns the only part in a new walk of what is not below from, for a listener that was
// told up to floor.
func (p *Processor) walkFrom(from string, durable bool, floor uint64) *walker {
	w := p.newWalk(durable)
	w.floor = floor
	p.walksMu.Lock()
	wr := w.addLocked()
	p.walksMu.Unlock()
	p.running.Go(func() { w.run(from) })
	return wr
}

func (w *walk) addLocked() *walker {
	wr := &walker{walk: w, chunks: make(chan *walkedChunk, chunksAhead), left: make(chan struct{})}
	wr.leave = sync.OnceFunc(func() { w.leave(wr) })
	w.walkers = append(w.walkers, wr)
	w.present++
	return wr
}

func (w *walk) leave(wr *walker) {
	w.p.walksMu.Lock()
	defer w.p.walksMu.Unlock()
	close(wr.left)
	w.noteMoved()
	if w.present--; w.present == 0 {
		close(w.abandoned)
		w.closeEntranceLocked()
	}
}

// closeEntranceLocked lets nobody join any more.
func (w *walk) closeEntranceLocked() {
	if w.p.walks[w.durable] == w {
		delete(w.p.walks, w.durable)
	}
}

func (w *walk) run(from string) {
	for {
		c := w.read(from)
		switch {
		case c.err != nil:
		case from == "": // Meanwhile others can join.
			c.decode()
		default:
			w.p.running.Go(func() { c.decode() })
		}
		w.p.walksMu.Lock()
		w.closeEntranceLocked()
		w.p.walksMu.Unlock()
		w.send(c)
		if c.err != nil || c.chunk.Done || len(w.walkers) == 0 {
			break
		}
		from = c.chunk.Next
	}
	for _, wr := range w.walkers {
		close(wr.chunks)
	}
}

func (w *walk) read(from string) *walkedChunk {
	select {
	case w.p.reads <- struct{}{}:
		defer func() { <-w.p.reads }()
	case <-w.abandoned:
		return &walkedChunk{err: queue.ErrStopped}
	}
	c := &walkedChunk{from: from, epoch: w.p.opts.Log.Epoch()}
	c.chunk, c.err = w.p.opts.Store.ReadChunk(from, w.durable)
	w.floor = max(w.floor, c.chunk.Seq)
	c.chunk.Seq = w.floor
	c.decode = sync.OnceValue(func() indexer.Chunk { return w.p.opts.Store.DecodeChunk(c.chunk) })
	return c
}

// send gives a chunk to all, but those that have left, or are slower than the others.
func (w *walk) send(c *walkedChunk) {
	waiting, slow := slices.Clone(w.walkers), (<-chan time.Time)(nil)
	for {
		waiting = slices.DeleteFunc(waiting, func(wr *walker) bool {
			select {
			case wr.chunks <- c:
				return true
			default:
				return wr.hasLeft()
			}
		})
		if len(waiting) == 0 {
			break
		}
		if slow == nil && len(waiting) < len(w.walkers) { // The others go on.
			slow = time.After(walkPatience)
		}
		select {
		case <-w.moved:
			continue
		case <-slow:
		}
		break
	}
	w.walkers = slices.DeleteFunc(w.walkers, func(wr *walker) bool {
		gone := wr.hasLeft() || slices.Contains(waiting, wr)
		if gone {
			close(wr.chunks)
		}
		return gone
	})
}

func (wr *walker) hasLeft() bool {
	select {
	case <-wr.left:
		return true
	default:
		return false
	}
}

// noteMoved wakes the walk, because a listener has taken a chunk, or has left.
func (w *walk) noteMoved() {
	select {
	case w.moved <- struct{}{}:
	default: // It is about to look already.
	}
}

// A walkReader gives a listener the chunks of the store, in order.
type walkReader struct {
	l      *listener
	walker *walker
	next   string // Where the next chunk begins.
	// floor is the least Seq that a chunk may have.
	floor uint64
}

// read returns the next chunk. A chunk that was read for others too is used if it is not older than
// floor and take accepts it.
func (r *walkReader) read(take func(*walkedChunk) error) (*walkedChunk, error) {
	for {
		if r.walker == nil {
			r.walker = r.l.p.walkFrom(r.next, r.l.durable, r.floor)
		}
		select {
		case c, ok := <-r.walker.chunks:
			r.walker.walk.noteMoved()
			if !ok || c.err == nil && c.chunk.Seq < r.floor {
				r.leave()
				continue
			}
			err := c.err
			if err == nil {
				err = take(c)
			}
			if err == nil {
				r.next = c.chunk.Next
				return c, nil
			}
			r.leave()
			if err != queue.ErrOldRange { //nolint:errorlint // It is returned as it is.
				return nil, err
			}
		case <-r.l.stopCh:
			return nil, queue.ErrStopped
		}
	}
}

// leave ends the listener's part in its walk.
func (r *walkReader) leave() {
	if r.walker != nil {
		r.walker.leave()
		r.walker = nil
	}
}
