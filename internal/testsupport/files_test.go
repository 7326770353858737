package testsupport

import (
	"fmt"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// TestACopyIsOfOneMoment, although the file is written to.
func TestACopyIsOfOneMoment(t *testing.T) {
	from := filepath.Join(t.TempDir(), "from")
	db, err := bolt.Open(from, 0o600, &bolt.Options{PageSize: pageBytes, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := db.Update(func(tx *bolt.Tx) error {
				b, err := tx.CreateBucketIfNotExists([]byte("b"))
				for i := 0; err == nil && i < 20; i++ {
					err = b.Put(fmt.Append(nil, (n*7+i*31)%1000), make([]byte, 100+n*37%3000))
				}
				return err
			}); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for i := range 12 {
		to := filepath.Join(t.TempDir(), fmt.Sprint(i))
		CopyFile(t, from, to)
		copied, err := bolt.Open(to, 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := copied.View(func(tx *bolt.Tx) error {
			for err := range tx.Check() {
				t.Error(err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if err := copied.Close(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-stopped
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}
