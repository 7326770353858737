package indexer

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmwatch/warmwatch/persist"
)

// verifyKeys are read in one transaction.
const verifyKeys = 4096

// Verify reads all objects and index entries once, without decoding them, and
// reports damage to Options.OnCorrupt. A reader does not always meet it: where
// a key is damaged, what he looks for is just not there.
func (ix *Indexer) Verify(ctx context.Context) {
	before := ix.visible.Load()
	objects, err := ix.verifyBucket(ctx, objectsBucket)
	if now := ix.visible.Load(); err == nil && now.Seq == before.Seq && objects != now.Count {
		err = &persist.CorruptError{Bucket: ix.objectsName, Err: fmt.Errorf("%d objects, expected %d", objects, now.Count)}
	}
	if err == nil {
		_, err = ix.verifyBucket(ctx, indexBucket)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, persist.ErrClosed) {
		ix.failed(err, "verify")
	}
}

func (ix *Indexer) verifyBucket(ctx context.Context, bucket string) (keys int, err error) {
	for from, done := "", false; !done; {
		if err := ctx.Err(); err != nil {
			return keys, err
		}
		s, err := ix.db.Snapshot(ix.space)
		if err != nil {
			return keys, err
		}
		end := keys + verifyKeys
		done = true
		err = s.Scan(bucket, from, func(it *persist.Item) (bool, error) {
			if keys == end {
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
			return keys, err
		}
	}
	return keys, nil
}
