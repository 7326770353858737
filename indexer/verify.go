package indexer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/warmwatch/warmwatch/persist"
)

const (
	// verifyKeys are read in one transaction.
	verifyKeys = 256
	// verifyPause is how much longer Verify pauses than it reads.
	verifyPause = 9
)

// Verify reads all objects and index entries once, without decoding them, and
// reports damage to Options.OnCorrupt. A reader does not always meet it: where
// a key is damaged, what he looks for is just not there. It pauses most of the
// time, so that events do not wait for it.
func (ix *Indexer) Verify(ctx context.Context) {
	err := ix.verifyBucket(ctx, objectsBucket)
	if err == nil {
		err = ix.verifyBucket(ctx, indexBucket)
	}
	if err == nil {
		ix.Complete()
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, persist.ErrClosed) {
		ix.failed(err, "verify")
	}
}

func (ix *Indexer) verifyBucket(ctx context.Context, bucket string) error {
	for from, done := "", false; !done; {
		if err := ctx.Err(); err != nil {
			return err
		}
		begin := time.Now()
		s, err := ix.db.Snapshot(ix.space)
		if err != nil {
			return err
		}
		keys := 0
		done = true
		err = s.Scan(bucket, from, func(it *persist.Item) (bool, error) {
			if keys == verifyKeys {
				done = false
				return false, nil
			}
			keys++
			from = it.Key + "\x00"
			if it.Value != nil {
				return true, nil
			}
			_, err := it.Payload()
			return true, err
		})
		s.Close()
		if err != nil {
			return err
		}
		if !done {
			pause(ctx, verifyPause*time.Since(begin))
		}
	}
	return nil
}

// VerifyIndices compares the objects with the index entries that they should
// have, and reports damage to Options.OnCorrupt: where a page of an index is
// damaged, entries may just not be there. It decodes every object, and pauses
// like Verify.
func (ix *Indexer) VerifyIndices(ctx context.Context) {
	for from, done := "", len(*ix.indexers.Load()) == 0; !done; {
		if ctx.Err() != nil {
			return
		}
		begin := time.Now()
		var err error
		if from, done, err = ix.verifyChunk(from); err != nil {
			if !errors.Is(err, persist.ErrClosed) {
				ix.failed(err, "verify indices")
			}
			return
		}
		if !done {
			pause(ctx, verifyPause*time.Since(begin))
		}
	}
}

func (ix *Indexer) verifyChunk(from string) (next string, done bool, err error) {
	builds := ix.builds.Load()
	asOf, indexers := ix.Seq(), *ix.indexers.Load()
	s, err := ix.db.Snapshot(ix.space)
	if err != nil {
		return "", false, err
	}
	defer s.Close()
	var buf buffers
	ls, next, done, err := ix.scanChunk(s, from, asOf, &buf)
	if err != nil {
		return "", false, err
	}
	objects, good := ix.decode(ls, &buf, noMark)
	for i, obj := range objects {
		for name, f := range indexers {
			for _, v := range indexValues(f, name, good[i].key, obj) {
				found, err := s.View(indexBucket, newIndexPut(name, v, good[i].key).key, func(*persist.Item) error { return nil })
				if err == nil && !found {
					err = &persist.CorruptError{Bucket: ix.indexName, Key: good[i].key, Err: fmt.Errorf("index %q does not have an object that exists", name)}
				}
				if err != nil && (builds%2 == 1 || ix.builds.Load() != builds) {
					return next, done, nil // Indices are being built, or were.
				}
				if err != nil {
					return "", false, err
				}
			}
		}
	}
	return next, done, nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
