package processor

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

func (threeObjects) ReadObject(string, bool) (indexer.Chunk, error) { return indexer.Chunk{}, nil }

func (threeObjects) DecodeChunk(c indexer.Chunk) indexer.Chunk { return c }
func (threeObjects) Ballast() (release func())                 { return func() {} }

// TestARemovedHandlerDoesNotWaitForTheStore: those that read a chunk hang, as on a slow
// disk. Handlers that wait behind them can be removed, and leave nothing behind.
func TestARemovedHandlerDoesNotWaitForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := processorOf(t, threeObjects{})
		p.Start()
		for range chunkReads {
			p.reads <- struct{}{}
		}
		told := 0
		stays, err := p.Add(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { told++ }}, "", cache.HandlerOptions{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 500 {
			h, err := p.Add(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { t.Error("told of an object after it was removed") }}, "", cache.HandlerOptions{}, nil)
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

// chunkedStore is a Store of some chunks of one object each, which counts what is read.
type chunkedStore struct {
	chunks int
	reads  atomic.Int64
	seq    uint64
}

func (s *chunkedStore) ReadChunk(from string, _ bool) (indexer.Chunk, error) {
	s.reads.Add(1)
	time.Sleep(10 * time.Millisecond) // Meanwhile others can join.
	n, _ := strconv.Atoi(from)
	key := fmt.Sprintf("%03d", n)
	return indexer.Chunk{
		Keys: []string{key}, Seqs: []uint64{0}, Seq: s.seq, Next: strconv.Itoa(n + 1), Done: n+1 == s.chunks,
		Objects: []any{&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key}}},
	}, nil
}

func (*chunkedStore) DecodeChunk(c indexer.Chunk) indexer.Chunk      { return c }
func (*chunkedStore) ReadObject(string, bool) (indexer.Chunk, error) { return indexer.Chunk{}, nil }
func (*chunkedStore) Ballast() (release func())                      { return func() {} }

// goneBackStore is a chunkedStore of a file that goes back after the first chunk was read.
type goneBackStore struct {
	chunkedStore
	before, after uint64 // The Seq of the first chunk, and of the others.
}

func (s *goneBackStore) ReadChunk(from string, durable bool) (indexer.Chunk, error) {
	c, err := s.chunkedStore.ReadChunk(from, durable)
	if c.Seq = s.after; from == "" {
		c.Seq = s.before
	}
	return c, err
}

// processorOf starts a Processor, to which handlers can be added.
func processorOf(t *testing.T, store Store) (*Processor, *persist.DB) {
	db, err := persist.Open(context.Background(), filepath.Join(t.TempDir(), "cache.db"), persist.Options{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := queue.NewLog(queue.Options{DB: db, Space: "space"})
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	close(ready)
	p := New(Options{Log: log, Store: store, Served: ready, ServedAt: func() uint64 { return 0 }, Synced: ready})
	t.Cleanup(func() {
		p.Stop()
		p.Wait()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, db
}

// teller counts what it is told, and may be slow.
type teller struct {
	told  atomic.Int64
	pause time.Duration
}

func (h *teller) add(t *testing.T, p *Processor, durableName string) cache.ResourceEventHandlerRegistration {
	r, err := p.Add(cache.ResourceEventHandlerFuncs{AddFunc: func(any) {
		time.Sleep(h.pause)
		h.told.Add(1)
	}}, durableName, cache.HandlerOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestHandlersThatStartTogetherShareWhatIsRead: plain ones and durable ones apart. One that is
// slower than the others does not hold them up, and goes on alone; one that is removed is not
// waited for.
func TestHandlersThatStartTogetherShareWhatIsRead(t *testing.T) {
	const chunks = 50
	for name, c := range map[string]struct {
		slow, removed time.Duration
		wantReads     int64
	}{
		"together":       {0, 0, 2 * chunks},
		"one is slow":    {time.Second, 0, 2*chunks + chunks - 3}, // The first chunk, and the two behind it, are shared.
		"one is removed": {time.Hour, 50 * time.Millisecond, 2 * chunks},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &chunkedStore{chunks: chunks}
				p, _ := processorOf(t, store)
				handlers := make([]teller, 20)
				for i := range handlers[1:] {
					durableName := ""
					if i%2 == 0 {
						durableName = fmt.Sprint(i)
					}
					handlers[i+1].add(t, p, durableName)
				}
				handlers[0].pause = c.slow
				first := handlers[0].add(t, p, "")
				p.Start()
				if c.removed > 0 {
					time.Sleep(c.removed)
					if err := p.Remove(first); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(3 * time.Second)
				for i := range handlers[1:] {
					if n := handlers[i+1].told.Load(); n != chunks {
						t.Errorf("handler %d was told of %d objects", i+1, n)
					}
				}
				time.Sleep(2 * time.Hour)
				if n := handlers[0].told.Load(); n != chunks && c.removed == 0 {
					t.Errorf("the slow handler was told of %d objects", n)
				}
				if n := store.reads.Load(); n != c.wantReads {
					t.Errorf("%d chunks were read, expected %d", n, c.wantReads)
				}
			})
		})
	}
}

// TestAnInitialListGoesOnAfterTheFileHasGoneBack: the file was damaged and has lost commits, whose
// writes were told of. The list reads each chunk once, and not all the time until there is a write.
func TestAnInitialListGoesOnAfterTheFileHasGoneBack(t *testing.T) {
	for name, c := range map[string]struct{ head, before, after uint64 }{
		"during the list":                 {0, 100, 95},
		"before the list":                 {100, 95, 95},
		"and what is left has no numbers": {100, 0, 0},
	} {
		for _, durableName := range []string{"", "d"} {
			t.Run(name+"/"+durableName, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const chunks = 5
					store := &goneBackStore{chunkedStore{chunks: chunks}, c.before, c.after}
					p, _ := processorOf(t, store)
					p.opts.Log.Advance(0, c.head)
					var h teller
					h.add(t, p, durableName)
					p.Start()
					time.Sleep(time.Minute)
					if n := h.told.Load(); n != chunks {
						t.Errorf("told of %d objects, expected %d", n, chunks)
					}
					// Those that were read ahead for others too are read again.
					if n := store.reads.Load(); n > 2*chunks {
						t.Errorf("%d chunks were read, expected %d", n, chunks)
					}
				})
			})
		}
	}
}

// TestStatusHasAHandlerOnce, also after the end, when its name has no consumer any more.
func TestStatusHasAHandlerOnce(t *testing.T) {
	p, _ := processorOf(t, threeObjects{})
	var h teller
	h.add(t, p, "d")
	h.add(t, p, "")
	p.Start()
	p.Stop()
	p.Wait()
	if all := p.Status(); len(all) != 2 || !all[0].Durable && !all[1].Durable {
		t.Errorf("the handlers are %+v", all)
	}
}

// TestStatusDoesNotWaitForTheFile: so much waits to be written that a durable handler that is added
// waits for the committer, which hangs.
func TestStatusDoesNotWaitForTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, db := processorOf(t, threeObjects{})
		p.Start()
		put := func(size int) {
			if _, err := db.Update(func(b *persist.Batch) {
				b.Put(persist.Bucket{Space: "space", Name: "other"}, "key", persist.Bytes(make([]byte, size)))
				b.Urgent()
			}); err != nil {
				t.Fatal(err)
			}
		}
		hang := make(chan struct{})
		goOn := sync.OnceFunc(func() { close(hang) })
		defer goOn()
		db.AddHook(&persist.Hook{AfterCommit: func(uint64) { <-hang }})
		put(1)
		time.Sleep(time.Second) // It is committed, and the hook hangs.
		put(1 << 25)
		added := make(chan error, 1)
		go func() {
			_, err := p.Add(cache.ResourceEventHandlerFuncs{}, "durable", cache.HandlerOptions{}, nil)
			added <- err
		}()
		synctest.Wait()
		if len(added) > 0 {
			t.Error("the handler was added at once")
		}
		if !p.mu.TryLock() { // A goroutine that waits for a Mutex would be waited for outside of the bubble's time.
			t.Fatal("whoever asks for the status waits")
		}
		p.mu.Unlock()
		if all := p.Status(); len(all) > 0 {
			t.Errorf("handlers: %v", all)
		}
		goOn()
		if err := <-added; err != nil {
			t.Error(err)
		}
		if all := p.Status(); len(all) != 1 {
			t.Errorf("handlers: %v", all)
		}
	})
}
