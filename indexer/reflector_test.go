package indexer

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// fakeSource is a FakeControllerSource that declares that it cannot stream lists.
type fakeSource struct{ *fcache.FakeControllerSource }

func (fakeSource) IsWatchListSemanticsUnSupported() bool { return true }

// TestTheIndexerAloneUnderClientGosReflector: no informer is needed, and after
// a restart it has what it had, before the server is asked.
func TestTheIndexerAloneUnderClientGosReflector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		source := fakeSource{fcache.NewFakeControllerSource()}
		defer source.Broadcaster.Shutdown()
		for i := range 5 {
			source.Add(newPod(fmt.Sprintf("pod-%d", i), ""))
		}
		run := func(ix *Indexer) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			r := cache.NewReflectorWithOptions(source, &corev1.Pod{}, ix, cache.ReflectorOptions{Name: "test"})
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.RunWithContext(ctx)
			}()
			synctest.Wait()
			return func() {
				cancel()
				<-done
			}
		}
		db := testdb.Open(t, path, persist.Options{})
		ix := newIndexer(t, db, cache.Indexers{"node": byNode}, 0)
		stop := run(ix)
		if ix.Len() != 5 || ix.LastStoreSyncResourceVersion() != "5" {
			t.Errorf("%d objects at %q", ix.Len(), ix.LastStoreSyncResourceVersion())
		}
		changed := newPod("pod-1", "")
		changed.Spec.NodeName = "node"
		source.Modify(changed)
		source.Delete(newPod("pod-2", ""))
		source.Add(newPod("pod-5", ""))
		synctest.Wait()
		keys, err := ix.IndexKeys("node", "node")
		if len(keys) != 1 || err != nil || ix.Len() != 5 || ix.LastStoreSyncResourceVersion() != "8" {
			t.Errorf("%v, %v, %d objects at %q", keys, err, ix.Len(), ix.LastStoreSyncResourceVersion())
		}
		stop()
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		source.Delete(newPod("pod-3", "")) // While nobody looks.

		db = testdb.Open(t, path, persist.Options{})
		ix = newIndexer(t, db, cache.Indexers{"node": byNode}, 0)
		if ix.Len() != 5 || ix.LastStoreSyncResourceVersion() != "8" {
			t.Errorf("after a restart: %d objects at %q", ix.Len(), ix.LastStoreSyncResourceVersion())
		}
		checkRebuild(t, ix)
		stop = run(ix)
		if ix.Len() != 4 || ix.LastStoreSyncResourceVersion() != "9" {
			t.Errorf("after a list: %d objects at %q", ix.Len(), ix.LastStoreSyncResourceVersion())
		}
		stop()
	})
}

// TestADurableChunkHasOnlyWhatIsInTheFile is what a durable handler is notified of.
func TestADurableChunkHasOnlyWhatIsInTheFile(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	ix := newIndexer(t, db, nil, -1)
	for i := range 5 {
		if err := ix.Add(newPod(fmt.Sprintf("pod-%d", i), "1")); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := ix.Chunk("", true); err != nil || len(c.Keys) != 0 || c.Seq != 0 || !c.Done {
		t.Errorf("before the first commit: %+v, %v", c, err)
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := ix.Update(newPod("pod-1", "2")); err != nil {
		t.Fatal(err)
	}
	if err := ix.Delete(newPod("pod-2", "2")); err != nil {
		t.Fatal(err)
	}
	c, err := ix.Chunk("ns/pod-1", true)
	if err != nil || len(c.Objects) != 4 || c.Seq != 5 {
		t.Fatalf("%+v, %v", c, err)
	}
	if rv := c.Objects[0].(*corev1.Pod).ResourceVersion; rv != "1" { // Not the one in memory.
		t.Errorf("pod-1 has version %s", rv)
	}
	if c, err = ix.Chunk("", false); err != nil || len(c.Objects) != 4 || c.Seq != 7 {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestAListOfManyChunks is longer than one.
func TestAListOfManyChunks(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Millisecond})
	ix := newIndexer(t, db, nil, 100_000)
	n := 3*ChunkObjects + 7
	var list []any
	for i := range n {
		p := newPod(fmt.Sprintf("pod-%05d", i), strconv.Itoa(i))
		if i < 10 {
			p.Annotations["large"] = string(make([]byte, chunkBytes/3)) // Chunks end by size, too.
		}
		list = append(list, p)
	}
	if err := ix.Replace(list, "77"); err != nil {
		t.Fatal(err)
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 { // Some in memory.
		if err := ix.Update(newPod(fmt.Sprintf("pod-%05d", i*50), "x")); err != nil {
			t.Fatal(err)
		}
	}
	chunks, objects := 0, 0
	for from, done := "", false; !done; chunks++ {
		c, err := ix.Chunk(from, false)
		if err != nil {
			t.Fatal(err)
		}
		for i, key := range c.Keys {
			if want := fmt.Sprintf("ns/pod-%05d", objects+i); key != want {
				t.Fatalf("key %s, expected %s", key, want)
			}
		}
		objects += len(c.Objects)
		from, done = c.Next, c.Done
	}
	if objects != n || chunks < 4 || len(ix.List()) != n {
		t.Errorf("%d objects in %d chunks, a list of %d; expected %d", objects, chunks, len(ix.List()), n)
	}
}
