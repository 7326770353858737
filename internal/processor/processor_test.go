package processor

import (
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/indexer"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

func TestMain(m *testing.M) { testsupport.Main(m, nil) }

// threeObjects is a Store.
type threeObjects struct{}

func (threeObjects) ReadChunk(string, bool) (indexer.Chunk, error) {
	c := indexer.Chunk{Done: true}
	for i := range 3 {
		c.Keys, c.Seqs = append(c.Keys, fmt.Sprint(i)), append(c.Seqs, 0)
		c.Objects = append(c.Objects, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}})
	}
	return c, nil
}

func (threeObjects) DecodeChunk(c indexer.Chunk) indexer.Chunk { return c }
func (threeObjects) Ballast() (release func())                 { return func() {} }

// TestARemovedHandlerDoesNotWaitForTheStore: those that read a chunk hang, as on a slow
// disk. Handlers that wait behind them can be removed, and leave nothing behind.
func TestARemovedHandlerDoesNotWaitForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := persist.Open(filepath.Join(t.TempDir(), "cache.db"), persist.Options{})
		if err != nil {
			t.Fatal(err)
		}
		log, err := queue.NewLog(queue.Options{DB: db, Space: "space"})
		if err != nil {
			t.Fatal(err)
		}
		ready := make(chan struct{})
		close(ready)
		p := New(Options{Log: log, Store: threeObjects{}, Served: ready, ServedAt: func() uint64 { return 0 }, Synced: ready})
		p.Start()
		defer func() {
			p.Stop()
			p.Wait()
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}()
		for range chunkReads {
			p.reads <- struct{}{}
		}
		told := 0
		stays, err := p.Add(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { told++ }}, "", cache.HandlerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 500 {
			h, err := p.Add(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { t.Error("told of an object after it was removed") }}, "", cache.HandlerOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				synctest.Wait() // It waits for the store now; others are removed before they begin.
			}
			if err := p.Remove(h); err != nil {
				t.Fatal(err)
			}
			<-h.(*listener).ShutdownChan()
		}
		if stays.HasSynced() || told > 0 {
			t.Error("the store was read")
		}
		for range chunkReads {
			<-p.reads
		}
		synctest.Wait()
		if !stays.HasSynced() || told != 3 {
			t.Errorf("told of %d objects", told)
		}
	})
}
