package processor

import (
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
	first, deletions := true, l.consumer.Deletions()
	l.leftOut = nil
	chunks := &walkReader{l: l, walker: l.p.join(l.durable), floor: l.consumer.Cursor()}
	ok := l.tellChunks(chunks, l.noteRange(chunks), func(c indexer.Chunk) bool {
		if first && !l.startsOver {
			l.consumer.InitialListFrom(c.Seq)
		}
		if first && !c.Done {
			endBallast = l.p.opts.Store.Ballast()
		}
		first = false
		l.noteLeftOut(c.LeftOut)
		if !l.tellReplaced(deletions, c) {
			return false
		}
		l.listedSeq = max(l.listedSeq, c.Seq)
		d := queue.Delta{Type: cache.Added}
		for i, obj := range c.Objects {
			d.Key, d.Seq = c.Keys[i], c.Seqs[i]
			if l.stopped() {
				return false
			}
			told, goOn := l.call(&d, func() { l.handler.OnAdd(obj, true) })
			if !goOn {
				return false
			}
			if told {
				l.consumer.EndAside(&queue.Delta{Type: cache.Added, Key: d.Key})
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

// noteTold notes that the handler was told of a delta, which may be the last that the list lacked. A deletion that the
// list covers is not of the object that it lacked.
func (l *listener) noteTold(d *queue.Delta) {
	_, leftOut := l.leftOut[d.Key]
	if !leftOut || d.Type == cache.Deleted && d.Seq <= l.consumer.ListedAt(d.Key) {
		return
	}
	if delete(l.leftOut, d.Key); len(l.leftOut) == 0 {
		l.consumer.InitialListDone()
	}
}

// tellReplaced tells a handler that starts over of the deletions up to the chunk's Seq of keys that the chunk has objects
// of. It may know an object that was deleted since this list began, and the list has the one that took its name only.
func (l *listener) tellReplaced(deletions *queue.Deletions, c indexer.Chunk) bool {
	if !l.startsOver {
		return true
	}
	for after := uint64(0); after < c.Seq; {
		ds, err := deletions.Of(c.Keys, after, c.Seq)
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
			after = ds[i].Seq
			ds[i].Replaced = false // The list tells of the new object.
			if l.stopped() {
				return false
			}
			told, goOn := l.tell(&ds[i])
			if !goOn {
				return false
			}
			if told {
				l.consumer.EndAside(&queue.Delta{Type: cache.Deleted, Key: ds[i].Key})
			}
			if l.toldReplaced == nil {
				l.toldReplaced = map[uint64]struct{}{}
			}
			l.toldReplaced[after] = struct{}{}
		}
	}
	return true
}

// tellChunks calls tell with all objects until tell returns false. Chunks are taken, and decoded,
// while the ones before are told.
func (l *listener) tellChunks(chunks *walkReader, take func(*walkedChunk) error, tell func(indexer.Chunk) bool) bool {
	defer chunks.leave()
	for {
		c, err := chunks.read(take)
		if err != nil {
			if !l.failed(err) {
				return false
			}
			continue
		}
		if !tell(c.decode()) {
			return false
		}
		if c.chunk.Done {
			return true
		}
	}
}

// noteRange returns what has the queue note the Seq of each chunk of the initial list. The first
// chunk may move the cursor to its Seq, so those behind it must not be older.
func (l *listener) noteRange(chunks *walkReader) func(*walkedChunk) error {
	return func(c *walkedChunk) error {
		chunks.floor = max(chunks.floor, c.chunk.Seq)
		return l.consumer.NoteRange(c.from, queue.ListedRange{To: c.chunk.Next, Last: c.chunk.Done, Seq: c.chunk.Seq}, c.epoch)
	}
}

// toldByInitialList reports whether the initial list has told of a delta's outcome already.
func (l *listener) toldByInitialList(d *queue.Delta) bool {
	if d.Seq > l.listedSeq {
		l.listedSeq, l.toldReplaced, l.untoldByList = 0, nil, nil
		return false
	}
	if d.Seq > l.consumer.ListedAt(d.Key) {
		return false
	}
	if l.isUntold(d) {
		if l.untoldByList == nil {
			l.untoldByList = map[string]struct{}{}
		}
		l.untoldByList[d.Key] = struct{}{}
	}
	_, untold := l.untoldByList[d.Key]
	return !untold
}

// isUntold reports whether a delta that the list covers is a deletion that the handler has to be told of, and that the
// list has not told of: it had no object of the name, or tellReplaced did not find the deletion.
func (l *listener) isUntold(d *queue.Delta) bool {
	_, told := l.toldReplaced[d.Seq]
	return l.startsOver && d.Type == cache.Deleted && !told
}
