package workqueue

import (
	"errors"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

func TestMain(m *testing.M) { testsupport.Main(m, nil) }

// openStore returns the Store of a file that is written to only when the DB is flushed.
func openStore(t *testing.T, path string) (*Store, *persist.DB) {
	t.Helper()
	db := testdb.Open(t, path, testdb.Manual)
	return NewStore(db, "workqueues", testsupport.Quiet), db
}

func newQueue(t *testing.T, s *Store, o Options[string]) *Queue[string] {
	t.Helper()
	q, err := New(s, "model", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.ShutDown)
	return q
}

// flush makes a commit.
func flush(t *testing.T, db *persist.DB) {
	t.Helper()
	err := db.Update(func(*persist.Batch) {})
	if err == nil {
		err = db.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// crashed returns the path of a copy of the file as it is now.
func crashed(t *testing.T, path string) string {
	t.Helper()
	copied := testsupport.Path(t)
	testsupport.CopyFile(t, path, copied)
	return copied
}

// changeWork changes a file that is not open.
func changeWork(t *testing.T, path string, change func(names, work *bolt.Bucket) error) {
	t.Helper()
	file, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = file.Update(func(tx *bolt.Tx) error {
		space := tx.Bucket([]byte("workqueues"))
		return change(space.Bucket([]byte("workqueues")), space.Bucket([]byte("work")))
	})
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}
