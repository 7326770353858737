package reflector

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// recorder is the store of a Reflector: a Sink whose calls are written down.
type recorder struct {
	*Sink
	calls *journal
}

func (s recorder) note(call string, obj any) {
	v := request.ItemOf(obj)
	s.calls.note("%s %s@%s", call, v.Name, v.ResourceVersion)
}

func (s recorder) Add(obj any) error {
	s.note("add", obj)
	return s.Sink.Add(obj)
}

func (s recorder) Update(obj any) error {
	s.note("update", obj)
	return s.Sink.Update(obj)
}

func (s recorder) Delete(obj any) error {
	s.note("delete", obj)
	return s.Sink.Delete(obj)
}

func (s recorder) Bookmark(rv string) error {
	s.calls.note("bookmark %s", rv)
	return s.Sink.Bookmark(rv)
}

func (s recorder) Replace(objs []any, rv string) error {
	if len(objs) > 0 {
		return fmt.Errorf("a list of %d objects", len(objs))
	}
	s.calls.note("replace %s", rv)
	return s.Sink.Replace(objs, rv)
}

func (s recorder) expectContents(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, contents(s.Sink)); diff != "" {
		t.Errorf("the store has something else (-want +got):\n%s", diff)
	}
}

// contents returns the name@resourceVersion of all objects.
func contents(k *Sink) []string {
	k.indexer.Hide(false)
	got := []string{}
	for _, obj := range k.indexer.List() {
		cm := obj.(*corev1.ConfigMap)
		got = append(got, cm.Name+"@"+cm.ResourceVersion)
	}
	slices.Sort(got)
	return got
}

// silentInformer is an Informer of which a relist is all that happens.
type silentInformer struct{ Informer }

func (silentInformer) RelistBegun(bool)             {}
func (silentInformer) RelistEnded(bool, error) bool { return true }
func (silentInformer) Relisted(Relisted)            {}
func (silentInformer) Refused(error)                {}

// newSink returns a Sink of ConfigMaps in a new file.
func newSink(t *testing.T, options ...persist.Options) *Sink {
	t.Helper()
	return newSinkOf(t, nil, options...)
}

// newSinkOf is newSink with these Objects, or some of its own.
func newSinkOf(t *testing.T, objects *indexer.Objects, options ...persist.Options) *Sink {
	t.Helper()
	o := append(options, persist.Options{})[0]
	db := testdb.Open(t, testsupport.Path(t), o)
	newObject := func() any { return new(corev1.ConfigMap) }
	ix, err := indexer.New(indexer.Options{DB: db, Space: "s", NewObject: newObject, Objects: objects, KeepVersion: true})
	if err != nil {
		t.Fatal(err)
	}
	ix.Hide(true)
	log, err := queue.NewLog(queue.Options{DB: db, Space: "s", NewObject: newObject})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		log.Stop()
		ix.Release()
	})
	k := NewSink(SinkOptions{
		DB: db, Space: "s", Indexer: ix, Log: log, Informer: silentInformer{}, Detector: cache.NewCacheMutationDetector("sink"), Logger: klog.Background(),
		Example: &corev1.ConfigMap{}, NewObject: newObject, MaxPendingBytes: o.MaxPendingBytes,
	})
	if _, err := k.Load(checkpoint.Want{}, nil); err != nil {
		t.Fatal(err)
	}
	return k
}

// relistOf begins a relist with these items.
func relistOf(t *testing.T, k *Sink, items ...*corev1.ConfigMap) *relist {
	t.Helper()
	r, err := k.beginRelist(Relisting{})
	for _, obj := range items {
		if err == nil {
			err = r.item(obj)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}
