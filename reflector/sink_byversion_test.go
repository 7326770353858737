package reflector

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
)

// TestVersionsProveContents after all contents were compared, while the schema is the
// same. A relist that has compared versions says nothing about contents, and is no full list.
func TestVersionsProveContents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, i := newSink(t), &countingInformer{}
		k.informer = i
		compare := func(schema string, each func(*relist) error) {
			t.Helper()
			r, err := k.beginRelist(Relisting{Schema: schema})
			if err == nil {
				err = each(r)
			}
			if err == nil {
				_, err = r.finish("9")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		byContent := func(r *relist) error { return r.item(newConfigMap("a", "1")) }
		byVersion := func(r *relist) error {
			_, err := r.known(request.ItemOf(newConfigMap("a", "1")))
			return err
		}
		expect := func(when, schema string, want bool) {
			t.Helper()
			if got := k.comparable(schema); got != want {
				t.Errorf("%s, with schema %q: %v", when, schema, got)
			}
		}
		expect("empty", "", false)
		expect("empty", "s1", false)
		compare("s1", byContent)
		expect("compared", "s1", true)
		expect("compared", "s2", false)
		expect("compared", "", false)
		full := k.Checkpoint().LastFullList
		time.Sleep(time.Hour)
		compare("s1", byVersion)
		expect("compared by version", "s1", true)
		if !k.Checkpoint().LastFullList.Equal(full) || i.full != 1 {
			t.Errorf("%d full lists, the last one at %v, expected %v", i.full, k.Checkpoint().LastFullList, full)
		}
		compare("", byContent)
		expect("compared under a schema that is not known", "s1", false)
		expect("compared under a schema that is not known", "", false)
		compare("s2", byContent)
		expect("compared again", "s2", true)
		if now := time.Now(); !k.Checkpoint().LastFullList.Equal(now) || i.full != 3 {
			t.Errorf("%d full lists, the last one at %v, expected %v", i.full, k.Checkpoint().LastFullList, now)
		}
		k.record.Identity = checkpoint.Identity{Name: "another"}
		expect("nobody knows what the objects are", "s2", false)
		k.record.Identity = checkpoint.Identity{}
		k.record.Rewrite = true
		expect("records are to be written anew", "s2", false)
	})
}

// countingInformer counts full lists.
type countingInformer struct {
	silentInformer
	full int
}

func (i *countingInformer) Relisted(r Relisted) {
	if r.Full {
		i.full++
	}
}

func TestKnownIsTheVeryVersionOfTheStore(t *testing.T) {
	k := newSink(t)
	noUID := newConfigMap("no-uid", "4")
	noUID.UID = ""
	if _, err := relistOf(t, k, newConfigMap("a", "1"), newConfigMap("b", "2"), newConfigMap("c", "3"), noUID).finish("9"); err != nil {
		t.Fatal(err)
	}
	r := relistOf(t, k)
	for _, c := range []struct {
		v    request.Item
		want bool
	}{
		{request.Item{Name: "a", UID: "uid-a", ResourceVersion: "1"}, true},
		{request.Item{Name: "b", UID: "uid-b", ResourceVersion: "1"}, false},
		{request.Item{Name: "b", UID: "uid-a", ResourceVersion: "2"}, false},
		{request.Item{Name: "d", UID: "uid-d", ResourceVersion: "4"}, false},
		{request.Item{Name: "no-uid", ResourceVersion: "4"}, false},
		{request.Item{Namespace: "ns", Name: "c", UID: "uid-c", ResourceVersion: "3"}, false},
		{request.Item{Name: "a", UID: ""}, false},
	} {
		if got, err := r.known(c.v); got != c.want || err != nil {
			t.Errorf("%v: %v, %v", c.v, got, err)
		}
	}
	if _, err := r.finish("10"); err != nil {
		t.Fatal(err)
	}
	k.indexer.Hide(false)
	if keys := k.indexer.ListKeys(); len(keys) != 1 || keys[0] != "a" { // What is not known is not there.
		t.Errorf("the store has %v", keys)
	}
}
