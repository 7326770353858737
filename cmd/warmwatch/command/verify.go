package command

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/deletions"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/reflector"
)

func newVerify() *cobra.Command {
	cmd, _ := newReader("verify FILE", "Read everything and list what is wrong", cobra.ExactArgs(1), func(_ context.Context, f *file, _ []string) (*output, error) {
		values, err := f.verify()
		if err != nil {
			return nil, err
		}
		read := table{rows: [][]string{{"FILE", f.path}, {"READ", fmt.Sprintf("%d values", values)}}}
		out := &output{value: append([]finding{}, f.findings...), tables: []table{read, findingsTable(f.findings)}}
		for _, found := range f.findings {
			out.names = append(out.names, found.Key)
		}
		return out, found(len(f.findings), "findings")
	})
	return cmd
}

// verify adds everything that is wrong to the findings, and returns how many values it has read. OpenReadOnly has found
// the structure right.
func (f *file) verify() (values int, err error) {
	objects := map[string]map[string]struct{}{} // The keys of the objects, by space.
	err = f.each(func(i *informer, bucket string, it *persist.Item) error {
		values++
		payload, err := it.Payload()
		if err == nil {
			err = check(bucket, payload)
		}
		if bucket == indexer.ObjectsBucket {
			if objects[i.space] == nil {
				objects[i.space] = map[string]struct{}{}
			}
			objects[i.space][it.Key] = struct{}{}
		}
		if err != nil {
			f.note(i, at(i.bucket(bucket), it.Key, err))
		}
		return nil
	})
	for _, i := range f.informers {
		if i.index != nil {
			i.index.Complete()
		}
		err = errors.Join(err, f.verifyIndex(i, objects[i.space]), f.verifyDeltas(i))
	}
	return values, err
}

// at says where something is wrong.
func at(b persist.Bucket, key string, err error) error {
	if errors.Is(err, persist.ErrCorrupt) {
		return err
	}
	return &persist.CorruptError{Bucket: b, Key: key, Err: err}
}

// check returns an error for a value with a good checksum that does not belong in its bucket.
func check(bucket string, payload []byte) (err error) {
	switch bucket {
	case indexer.ObjectsBucket, reflector.StagedBucket, deletions.BucketName:
		_, err = record.Parse(payload)
	case queue.DeltasBucket:
		_, err = queue.ParseDelta(payload)
	case queue.HandlersBucket:
		err = json.Unmarshal(payload, new(queue.Handled))
	}
	return err
}

// verifyIndex finds index entries without an object.
func (f *file) verifyIndex(i *informer, objects map[string]struct{}) error {
	return f.scan(i.bucket(indexer.IndexBucket), func(it *persist.Item) error {
		_, _, object, err := parseEntry(it.Key)
		if _, exists := objects[object]; err == nil && !exists {
			err = fmt.Errorf("there is no object %s", object)
		}
		if err != nil {
			f.note(i, at(i.bucket(indexer.IndexBucket), it.Key, err))
		}
		return nil
	})
}

// verifyDeltas finds gaps in the deltas that are pending for a handler. A handler that starts over needs only
// deletions, whose numbers have gaps anyway.
func (f *file) verifyDeltas(i *informer) error {
	last, known := uint64(0), false
	_, err := f.View(i.bucket(queue.StateBucket), queue.LastKey, func(it *persist.Item) error {
		payload, err := it.Payload()
		if err == nil && len(payload) == 8 {
			last, known = binary.BigEndian.Uint64(payload), true
		}
		return nil // Its checksum is a finding already.
	})
	handlers, pendingErr := f.pending(i)
	for _, b := range handlers {
		switch {
		case !b.known || b.StartsOver:
		case !known:
			f.note(i, at(i.bucket(queue.StateBucket), queue.LastKey, fmt.Errorf("%s starts over: the number of the last delta is not known", b.Handler)))
		case last > b.cursor && uint64(b.Deltas) != last-b.cursor:
			f.note(i, at(i.bucket(queue.DeltasBucket), "", fmt.Errorf("%s starts over: it needs the deltas %d to %d, and %d of them are there", b.Handler, b.cursor+1, last, b.Deltas)))
		}
	}
	return errors.Join(err, pendingErr)
}
