package indexer

import (
	"context"
	"errors"

	"github.com/warmwatch/warmwatch/persist"
)

// verifyKeys are read in one transaction.
const verifyKeys = 4096

// Verify reads all objects and index entries once, without decoding them, and
// reports damage to Options.OnCorrupt. A reader does not always meet it: where
// a key is damaged, what he looks for is just not there.
func (ix *Indexer) Verify(ctx context.Context) {
	err := ix.verifyBucket(ctx, objectsBucket)
	if err == nil {
		err = ix.verifyBucket(ctx, indexBucket)
	}
	if err == nil {
		ix.recount()
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
	}
	return nil
}
