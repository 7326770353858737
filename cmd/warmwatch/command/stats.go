package command

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/persist"
)

// stats says what takes up space in a file.
type stats struct {
	File    fileStatus    `json:"file"`
	Buckets []bucketStats `json:"buckets"`
	Largest []largeObject `json:"largest"`
}

type bucketStats struct {
	Informer string `json:"informer"`
	Bucket   string `json:"bucket"`
	Keys     int    `json:"keys"`
	Bytes    int64  `json:"bytes"` // Of keys and values.
}

type largeObject struct {
	Informer string `json:"informer"`
	Key      string `json:"key"`
	Bytes    int    `json:"bytes"`
}

// shownLargest is how many of the largest objects are shown.
const shownLargest = 10

func newStats() *cobra.Command {
	cmd, _ := newReader("stats FILE", "Show what takes up space", cobra.ExactArgs(1), func(_ context.Context, f *file, _ []string) (*output, error) {
		st, err := f.stats()
		if err != nil {
			return nil, err
		}
		out := &output{value: st}
		files := table{rows: [][]string{{"FILE", st.File.Path}, {"SIZE", sizeOf(st.File.Bytes)}, {"FREE", sizeOf(st.File.FreeBytes)}}}
		buckets := table{header: []string{"BUCKET", "KEYS", "SIZE", "INFORMER"}}
		for _, b := range st.Buckets {
			buckets.add(b.Bucket, strconv.Itoa(b.Keys), sizeOf(b.Bytes), b.Informer)
			out.names = append(out.names, b.Informer+"/"+b.Bucket)
		}
		largest := table{header: []string{"OBJECT", "SIZE", "INFORMER"}}
		for _, o := range st.Largest {
			largest.add(o.Key, sizeOf(int64(o.Bytes)), o.Informer)
		}
		out.tables = []table{files, buckets, largest}
		return out, nil
	})
	return cmd
}

func (f *file) stats() (stats, error) {
	st := stats{File: f.fileStatus(), Buckets: []bucketStats{}, Largest: []largeObject{}}
	err := f.each(func(i *informer, bucket string, it *persist.Item) error {
		if n := len(st.Buckets); n == 0 || st.Buckets[n-1].Informer != i.name || st.Buckets[n-1].Bucket != bucket {
			st.Buckets = append(st.Buckets, bucketStats{Informer: i.name, Bucket: bucket})
		}
		b := &st.Buckets[len(st.Buckets)-1]
		b.Keys++
		b.Bytes += int64(len(it.Key) + it.SizeBytes())
		if n := len(st.Largest); bucket == indexer.ObjectsBucket && (n < shownLargest || it.SizeBytes() > st.Largest[n-1].Bytes) {
			st.Largest = append(st.Largest, largeObject{i.name, it.Key, it.SizeBytes()})
			slices.SortStableFunc(st.Largest, func(a, b largeObject) int { return cmp.Compare(b.Bytes, a.Bytes) })
			st.Largest = st.Largest[:min(n+1, shownLargest)]
		}
		return nil
	})
	slices.SortStableFunc(st.Buckets, func(a, b bucketStats) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return st, err
}
