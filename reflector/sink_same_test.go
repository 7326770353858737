package reflector

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/request"
)

// sameOf asks r for an object in protobuf.
func sameOf(t *testing.T, r *relist, cm *corev1.ConfigMap) bool {
	t.Helper()
	encoded, err := cm.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	same, err := r.same(request.ItemOf(cm), encoded)
	if err != nil {
		t.Fatal(err)
	}
	return same
}

// TestSameIsTheVeryContentOfTheStore, whether it is in the file or only in memory. What is the same
// stays, and nothing is written.
func TestSameIsTheVeryContentOfTheStore(t *testing.T) {
	for _, flushed := range []bool{true, false} {
		k := newSink(t)
		if _, err := relistOf(t, k, newConfigMap("a", "1"), newConfigMap("b", "2"), newConfigMap("c", "3")).finish("3"); err != nil {
			t.Fatal(err)
		}
		if flushed {
			if err := k.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		before := k.db.CommitSoon()
		r := relistOf(t, k)
		other := newConfigMap("b", "2")
		other.Data = map[string]string{"a": "default"}
		for _, c := range []struct {
			cm   *corev1.ConfigMap
			want bool
		}{
			{newConfigMap("a", "1"), true}, {newConfigMap("a", "2"), false}, {other, false}, {newConfigMap("d", "4"), false},
		} {
			if got := sameOf(t, r, c.cm); got != c.want {
				t.Errorf("flushed=%v, %s at version %s: %v", flushed, c.cm.Name, c.cm.ResourceVersion, got)
			}
		}
		if n := k.db.CommitSoon() - before; n > 0 {
			t.Errorf("flushed=%v: %d batches were written", flushed, n)
		}
		if _, err := r.finish("10"); err != nil {
			t.Fatal(err)
		}
		k.indexer.Hide(false)
		if keys := k.indexer.ListKeys(); len(keys) != 1 || keys[0] != "a" { // What is not the same is not there.
			t.Errorf("flushed=%v: the store has %v", flushed, keys)
		}
		if k.record.LastFullList.IsZero() || k.record.ResourceVersion != "10" {
			t.Errorf("flushed=%v: the checkpoint is %+v", flushed, k.record)
		}
	}
}

// TestWhatHasToBeDecodedIsNotSame, although the bytes are equal.
func TestWhatHasToBeDecodedIsNotSame(t *testing.T) {
	a := newConfigMap("a", "1")
	begin := func(how Relisting) func(*testing.T, *Sink) *relist {
		return func(t *testing.T, k *Sink) *relist {
			r, err := k.beginRelist(how)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
	}
	for name, c := range map[string]struct {
		transform cache.TransformFunc
		begin     func(*testing.T, *Sink) *relist
	}{
		"records are written anew": {nil, begin(Relisting{Rewrite: true})},
		"there is a transform":     {func(obj any) (any, error) { return obj, nil }, begin(Relisting{})},
		"the list has it twice":    {nil, func(t *testing.T, k *Sink) *relist { return relistOf(t, k, newConfigMap("a", "2")) }},
	} {
		t.Run(name, func(t *testing.T) {
			k := newSink(t)
			if _, err := relistOf(t, k, a, newConfigMap("b", "2")).finish("3"); err != nil {
				t.Fatal(err)
			}
			k.transform = c.transform
			if sameOf(t, c.begin(t, k), a) {
				t.Error("it is the same")
			}
		})
	}
	t.Run("the informer has ended", func(t *testing.T) {
		k := newSink(t)
		r := relistOf(t, k)
		k.Stop()
		if _, err := r.same(request.ItemOf(a), nil); err == nil {
			t.Error("no error")
		}
	})
}
