package processor

import (
	"maps"
	"sync"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/indexer"
	"github.com/warmwatch/warmwatch/queue"
)

// tellInitialList tells of every object. A chunk is read, at its own moment, while the
// one before is told, and its Seq is noted: later, deltas up to that Seq are left out.
// So no snapshot is held while a handler runs.
func (l *listener) tellInitialList() bool {
	if l.durable {
		if err := l.consumer.WaitDurable(l.p.opts.ServedAt()); err != nil {
			return false
		}
	}
	endBallast := func() {}
	defer func() { endBallast() }()
	begin, first, deletions := l.consumer.Cursor(), true, l.consumer.Deletions()
	l.leftOut = nil
	ok := l.chunks(l.readInitialList, func(c indexer.Chunk) bool {
		if first && !l.inherits {
			l.consumer.InitialListFrom(c.Seq)
		}
		if first && !c.Done {
			endBallast = l.p.opts.Store.Ballast()
		}
		first = false
		l.noteLeftOut(c.LeftOut)
		if !l.tellReplaced(deletions, l.noteNew(c, begin), c.Seq) {
			return false
		}
		l.listedSeq = max(l.listedSeq, c.Seq)
		d := queue.Delta{Type: cache.Added}
		for i, obj := range c.Objects {
			d.Key, d.Seq = c.Keys[i], c.Seqs[i]
			if l.stopped() || !l.call(&d, func() { l.handler.OnAdd(obj, true) }) {
				return false
			}
		}
		return true
	})
	if ok && len(l.leftOut) == 0 {
		l.consumer.InitialListDone()
	}
	return ok
}

// noteLeftOut notes what a durable handler was not told of. The next relist tells of it; if the
// process ends before, the next one begins the list anew.
func (l *listener) noteLeftOut(keys []string) {
	if !l.durable || len(keys) == 0 {
		return
	}
	if l.leftOut == nil {
		l.leftOut = map[string]struct{}{}
	}
	for _, key := range keys {
		l.leftOut[key] = struct{}{}
	}
}

// noteTold notes that the handler was told of a delta, which may be the last that the list lacked.
func (l *listener) noteTold(d *queue.Delta) {
	_, leftOut := l.leftOut[d.Key]
	if !leftOut || d.New == nil && d.Type != cache.Deleted || d.Seq <= l.consumer.ListedAt(d.Key) {
		return
	}
	if delete(l.leftOut, d.Key); len(l.leftOut) == 0 {
		l.consumer.InitialListDone()
	}
}

// noteNew notes and returns the keys of a chunk's objects that were written after the list
// began.
func (l *listener) noteNew(c indexer.Chunk, begin uint64) map[string]struct{} {
	if !l.inherits {
		return nil
	}
	found := map[string]struct{}{}
	for i, seq := range c.Seqs {
		if seq > begin {
			found[c.Keys[i]] = struct{}{}
		}
	}
	if l.listedNew == nil {
		l.listedNew = map[string]struct{}{}
	}
	maps.Copy(l.listedNew, found)
	return found
}

// tellReplaced tells a durable handler of the deletions of these keys up to seq. An earlier
// listener of its name may have told it of an object that was deleted and made anew since
// this list began, and the list has the new one only.
func (l *listener) tellReplaced(deletions *queue.Deletions, keys map[string]struct{}, seq uint64) bool {
	if !l.durable || len(keys) == 0 {
		return true
	}
	ds, err := deletions.Of(keys, seq)
	for ; err != nil; ds, err = deletions.Of(keys, seq) {
		if !l.failed(err) {
			return false
		}
	}
	for i := range ds {
		ds[i].Replaced = false // The list tells of the new object.
		if l.stopped() || !l.tell(&ds[i]) {
			return false
		}
	}
	return true
}

const (
	// chunksAhead is how many chunks are read and decoded before they are told.
	chunksAhead = 2
	// chunkReads is how many listeners of an informer read a chunk at once. More
	// would only wait for locks that the next event needs too, and while they wait
	// would not notice that they were removed.
	chunkReads = 4
)

// chunks calls tell with all objects until tell returns false. It reads some chunks ahead.
func (l *listener) chunks(read func(from string) (indexer.Chunk, error), tell func(indexer.Chunk) bool) bool {
	ahead := make(chan chan indexer.Chunk, chunksAhead)
	gaveUp := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(gaveUp)
	wg.Go(func() {
		defer close(ahead)
		for from, done := "", false; !done; {
			c, err := read(from)
			if err != nil {
				if !l.failed(err) {
					return
				}
				continue
			}
			from, done = c.Next, c.Done
			decoded := make(chan indexer.Chunk, 1)
			wg.Go(func() { decoded <- l.p.opts.Store.DecodeChunk(c) })
			select {
			case ahead <- decoded:
			case <-gaveUp:
				return
			}
		}
	})
	for decoded := range ahead {
		c := <-decoded
		if !tell(c) {
			return false
		}
		if c.Done {
			return true
		}
	}
	return false
}

// readInitialList is readChunk for the initial list. The queue notes the Seq of each chunk.
func (l *listener) readInitialList(from string) (c indexer.Chunk, err error) {
	err = l.consumer.ReadRange(from, func() (queue.ListedRange, error) {
		c, err = l.readChunk(from)
		return queue.ListedRange{To: c.Next, Last: c.Done, Seq: c.Seq}, err
	})
	return c, err
}

func (l *listener) readChunk(from string) (indexer.Chunk, error) {
	select {
	case l.p.reads <- struct{}{}:
		defer func() { <-l.p.reads }()
	case <-l.stopCh:
	}
	if l.stopped() {
		return indexer.Chunk{}, queue.ErrStopped
	}
	return l.p.opts.Store.ReadChunk(from, l.durable)
}

// toldByInitialList reports whether the initial list has told of a delta's outcome already.
func (l *listener) toldByInitialList(d *queue.Delta) bool {
	if d.Seq > l.listedSeq {
		l.listedSeq, l.listedNew = 0, nil
		return false
	}
	if d.Seq > l.consumer.ListedAt(d.Key) {
		return false
	}
	_, again := l.listedNew[d.Key]
	return d.Type != cache.Deleted || !l.inherits || again
}
