package testdb

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

// acknowledgedBucket has how many items AddDuringCommits has acknowledged.
var acknowledgedBucket = persist.Bucket{Space: "pods", Name: "cursors"}

// AddDuringCommits adds an item while a commit asks one hook after the other what it has, and acknowledges it to that
// commit, as a handler may: add adds the item n, and count says how many there are. It closes the DB, and returns
// copies of the file, each as one of the commits has left it.
func AddDuringCommits(t *testing.T, db *persist.DB, path string, add func(n int), count func() int) (files []string) {
	t.Helper()
	acknowledged := 0
	added := make(chan struct{}, 1)                                 // Has something while nothing is being added.
	db.AddHook(&persist.Hook{BeforeCommit: func(b *persist.Batch) { // As that of the deltas' log.
		select {
		case <-added:
		default: // The last one still waits for the DB's lock, in order to ask for a commit.
			return
		}
		n := acknowledged
		go func() {
			add(n)
			added <- struct{}{}
		}()
		for count() == n {
			runtime.Gosched()
		}
		acknowledged++
		b.Put(acknowledgedBucket, "durable", persist.Bytes(fmt.Sprint(acknowledged)))
	}, AfterCommit: func(uint64) { // Before the next one, which add has asked for.
		file := testsupport.Path(t)
		testsupport.CopyFile(t, path, file)
		files = append(files, file)
	}})
	added <- struct{}{}
	for range 20 {
		_, err := db.Update(func(*persist.Batch) {})
		if err == nil {
			err = db.Flush()
		}
		if err != nil {
			t.Fatal(err)
		}
		added <- <-added
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if acknowledged < 20 {
		t.Errorf("%d items were acknowledged in 20 commits", acknowledged)
	}
	return files
}

// ExpectAcknowledged compares how many items such a file has with how many are acknowledged in it.
func ExpectAcknowledged(t *testing.T, db *persist.DB, there int) {
	t.Helper()
	acknowledged := "0"
	_, err := db.View(acknowledgedBucket, "durable", func(it *persist.Item) error {
		b, err := it.Payload()
		acknowledged = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if acknowledged != fmt.Sprint(there) {
		t.Errorf("%s items are acknowledged, %d are there", acknowledged, there)
	}
}
