package warmwatch

import (
	"errors"
	"fmt"
	"slices"

	"github.com/warmwatch/warmwatch/internal/indexer"
	"github.com/warmwatch/warmwatch/internal/processor"
	"github.com/warmwatch/warmwatch/internal/reflector"
	"github.com/warmwatch/warmwatch/internal/sink"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// open makes the parts that live in the DB. If they cannot be read, the file as a
// whole may be damaged: then the DB replaces it. A space that still cannot be read
// is emptied.
func (s *SharedIndexInformer) open() error {
	err := s.openParts()
	for _, mend := range []func() error{s.replaceFile, s.dropSpace} {
		if !errors.Is(err, persist.ErrCorrupt) {
			break
		}
		s.logger.Error(err, "Could not read the cache")
		if err := mend(); err != nil {
			return err
		}
		err = s.openParts()
	}
	return err
}

// replaceFile waits until the DB has replaced a damaged file, if it has to.
func (s *SharedIndexInformer) replaceFile() error {
	if _, err := s.cache.db.Update(func(*persist.Batch) {}); err != nil {
		return err
	}
	if err := s.cache.db.Flush(); err != nil {
		s.logger.Error(err, "Could not write to the cache file")
	}
	return nil
}

func (s *SharedIndexInformer) openParts() (err error) {
	s.indexer, err = indexer.New(indexer.Options{
		DB: s.cache.db, Space: s.space, NewObject: s.newObject, Indexers: s.opts.Indexers,
		Objects: s.cache.objects, OnCorrupt: s.corrupt, OnDecode: s.detector.AddObject, Logger: &s.logger,
	})
	if err != nil {
		return err
	}
	s.indexer.Hide(true)
	s.queue, err = queue.NewLog(queue.Options{
		DB: s.cache.db, Space: s.space, Seq: s.indexer.Seq(), NewObject: s.newObject,
		OnCorrupt: s.corrupt, Logger: &s.logger, MaxBacklogBytes: s.cache.opts.MaxBacklogBytes,
	})
	if err != nil {
		return err
	}
	if s.indexer.Seq() == 0 && s.queue.Head() > 0 { // The store is empty, but deltas were written.
		s.corrupt(&persist.CorruptError{Bucket: persist.Bucket{Space: s.space, Name: "store"}, Err: errors.New("the store is missing")})
	}
	s.indexer.RaiseSeq(s.queue.Head()) // No new Seq may be below a cursor, even if the file lost the last one.
	s.processor = processor.New(processor.Options{
		Log: s.queue, Store: s.indexer, Logger: s.logger, Informer: s.describe(),
		Served: s.served, ServedAt: s.servedAt.Load, Synced: s.synced,
		InitialUntilSynced: s.cache.opts.SyncPolicy == SyncFromServer, ResyncPeriod: s.opts.ResyncPeriod,
	})
	s.sink = sink.New(sink.Options{
		DB: s.cache.db, Space: s.space, Indexer: s.indexer, Log: s.queue, Detector: s.detector, Logger: s.logger,
		Informer: &sinkInformer{
			progress: &s.progress, syncGate: &s.syncGate, processor: s.processor, resumer: &s.resumer,
			serve: s.serve, setSynced: s.setSynced, synced: s.HasSyncedChecker(),
		},
		ListerWatcher: s.lw, Example: s.example, NewObject: s.newObject, MaxAge: s.cache.opts.MaxAge,
		NotifyUnchanged: s.opts.NotifyUnchanged, FieldSelected: s.identity.FieldSelector != "",
	})
	s.removeHook = s.cache.db.AddHook(&persist.Hook{Space: s.space, AfterReset: s.replaced})
	return nil
}

// corruption returns the last damage that was found, nil once it is repaired.
func (s *SharedIndexInformer) corruption() error {
	s.progress.mu.Lock()
	defer s.progress.mu.Unlock()
	return s.progress.corruptErr
}

func (s *SharedIndexInformer) dropSpace() error {
	_, err := s.cache.db.Update(func(b *persist.Batch) {
		for _, name := range slices.Concat(indexer.Buckets(), queue.Buckets(), sink.Buckets()) {
			b.Drop(persist.Bucket{Space: s.space, Name: name})
		}
	})
	return err
}

// corrupt is called when a record cannot be read. It schedules a relist that writes
// every record anew.
func (s *SharedIndexInformer) corrupt(err error) { s.damaged(err, false) }

// replaced is called when a damaged file has been replaced. It does the same.
func (s *SharedIndexInformer) replaced(err error) { s.damaged(err, true) }

func (s *SharedIndexInformer) damaged(err error, wholeFile bool) {
	p := &s.progress
	p.mu.Lock()
	p.corruptErr = err
	// The relist that is due, or running, rewrites a single bad record as well.
	onItsWay := p.relistForced || p.rewriting
	if onItsWay && !wholeFile {
		p.mu.Unlock()
		return
	}
	p.relistForced = true
	p.mu.Unlock()
	if r := s.resumer.Load(); r != nil {
		r.ForceRelist(reflector.Relisting{Reason: fmt.Sprintf("the cache could not be read: %v", err), Rewrite: true})
	}
}
