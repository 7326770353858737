package indexer

import (
	"context"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

// TestAReaderBesideTheCommitOfANewType has fetched a record of the old type, and decodes it after it was replaced.
func TestAReaderBesideTheCommitOfANewType(t *testing.T) {
	db, err := persist.Open(context.Background(), testsupport.Path(t), persist.Options{Logger: &testsupport.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	var isNew atomic.Bool
	var decodes atomic.Pointer[func()]
	ix, err := New(Options{
		DB: db, Space: testSpace, Objects: NewObjects(1),
		Indexers: cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc},
		NewObject: func() any {
			if f := decodes.Swap(nil); f != nil {
				(*f)()
			}
			if isNew.Load() {
				return new(metav1.PartialObjectMetadata)
			}
			return new(corev1.ConfigMap)
		},
		OnCorrupt: func(err error) { t.Errorf("taken for damage: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	put := func(obj any) {
		if err := ix.Add(obj); err != nil {
			t.Error(err)
		}
		if err := db.Flush(); err != nil {
			t.Error(err)
		}
	}
	m := metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: "1", UID: "u"}
	put(&corev1.ConfigMap{ObjectMeta: m})
	ix.AlsoReads(func() any { return new(corev1.ConfigMap) })
	isNew.Store(true)
	commit := func() { put(&metav1.PartialObjectMetadata{ObjectMeta: m}) }
	decodes.Store(&commit)
	if objs, err := ix.ByIndex("namespace", "ns"); err != nil || len(objs) != 1 || decodes.Load() != nil {
		t.Errorf("ByIndex has %d objects (%v), expected 1", len(objs), err)
	}
}
