package reflector

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

func configMapOf(name, uid, rv string) *corev1.ConfigMap {
	cm := newConfigMap(name, rv)
	cm.UID = types.UID(uid)
	return cm
}

// readDeltas returns what a sink has published since the call before.
func readDeltas(t *testing.T, c *queue.Consumer) (said []string) {
	t.Helper()
	c.Interrupt()
	ds, err := c.Next()
	if err != nil {
		t.Fatal(err)
	}
	uid := func(obj any) string {
		if obj == nil {
			return "nil"
		}
		return string(request.ItemOf(obj).UID) + "@" + request.ItemOf(obj).ResourceVersion
	}
	for i := range ds {
		d := &ds[i]
		said = append(said, fmt.Sprintf("%s %s: %s, %s, replaced %v, unknown %v", d.Type, d.Key, uid(d.Old), uid(d.New), d.Replaced, d.FinalStateUnknown))
	}
	if err := c.Acknowledge(ds); err != nil {
		t.Fatal(err)
	}
	return said
}

// consumerOf returns a consumer that has passed its initial list.
func consumerOf(t *testing.T, k *Sink) *queue.Consumer {
	t.Helper()
	c := k.queue.Plain()
	_, err := c.BeginList()
	if err := errors.Join(err, c.EndList()); err != nil {
		t.Fatal(err)
	}
	return c
}

// filledSink returns a Sink that has a first list.
func filledSink(t *testing.T, items ...*corev1.ConfigMap) (*Sink, *queue.Consumer) {
	t.Helper()
	k := newSink(t)
	if _, err := relistOf(t, k, items...).finish("5"); err != nil {
		t.Fatal(err)
	}
	return k, consumerOf(t, k)
}

// TestAReplacedObjectIsOneDelta (D2), whether an event brings it or a relist, and also if it has the version of the old
// one.
func TestAReplacedObjectIsOneDelta(t *testing.T) {
	for name, bring := range map[string]func(*testing.T, *Sink, *corev1.ConfigMap) error{
		"an event": func(_ *testing.T, k *Sink, cm *corev1.ConfigMap) error { return k.Update(cm) },
		"a relist": func(t *testing.T, k *Sink, cm *corev1.ConfigMap) error {
			_, err := relistOf(t, k, cm).finish("9")
			return err
		},
	} {
		for _, rv := range []string{"3", "7"} {
			t.Run(name+" of version "+rv, func(t *testing.T) {
				k, c := filledSink(t, configMapOf("a", "old", "3"))
				if err := bring(t, k, configMapOf("a", "new", rv)); err != nil {
					t.Fatal(err)
				}
				want := []string{"Updated a: old@3, new@" + rv + ", replaced true, unknown false"}
				if got := readDeltas(t, c); !slices.Equal(got, want) {
					t.Errorf("%q, expected %q", got, want)
				}
			})
		}
	}
}

// TestAnObjectWithoutAUIDReplacesNothing: a transform has stripped it.
func TestAnObjectWithoutAUIDReplacesNothing(t *testing.T) {
	k, c := filledSink(t, configMapOf("a", "", "3"))
	if err := k.Update(configMapOf("a", "new", "7")); err != nil {
		t.Fatal(err)
	}
	want := []string{"Updated a: @3, new@7, replaced false, unknown false"}
	if got := readDeltas(t, c); !slices.Equal(got, want) {
		t.Errorf("%q, expected %q", got, want)
	}
}

// damage makes an object unreadable.
func damage(t *testing.T, k *Sink, key string) {
	t.Helper()
	err := k.db.Update(func(b *persist.Batch) {
		b.Put(persist.Bucket{Space: "s", Name: indexer.Buckets()[0]}, key, []byte("no record"))
	})
	if err := errors.Join(err, k.db.Flush()); err != nil {
		t.Fatal(err)
	}
}

// TestAnUnreadableObjectMayBeAnother: durable handlers are notified of the deletion of whatever it was.
func TestAnUnreadableObjectMayBeAnother(t *testing.T) {
	for name, bring := range map[string]func(*testing.T, *Sink) error{
		"an event": func(_ *testing.T, k *Sink) error { return k.Update(newConfigMap("a", "7")) },
		"a relist": func(t *testing.T, k *Sink) error {
			_, err := relistOf(t, k, newConfigMap("a", "7")).finish("9")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newSinkOf(t, indexer.NewObjects(1))
			if _, err := relistOf(t, k, newConfigMap("a", "3")).finish("5"); err != nil {
				t.Fatal(err)
			}
			c := consumerOf(t, k)
			damage(t, k, "a")
			if err := bring(t, k); err != nil {
				t.Fatal(err)
			}
			want := []string{"Added a: nil, uid-a@7, replaced true, unknown false"}
			if got := readDeltas(t, c); !slices.Equal(got, want) {
				t.Errorf("%q, expected %q", got, want)
			}
		})
	}
}

// TestTheDeletionOfAnotherObjectTellsTheStoredOne, which handlers know.
func TestTheDeletionOfAnotherObjectTellsTheStoredOne(t *testing.T) {
	for name, c := range map[string]struct {
		deleted   *corev1.ConfigMap
		otherType bool
		want      string
	}{
		"the stored one":               {deleted: configMapOf("a", "old", "7"), want: "nil, old@7, replaced false, unknown false"},
		"another one":                  {deleted: configMapOf("a", "new", "7"), want: "nil, old@3, replaced false, unknown true"},
		"another one, of another type": {deleted: configMapOf("a", "new", "7"), otherType: true, want: "nil, nil, replaced false, unknown true"},
	} {
		t.Run(name, func(t *testing.T) {
			k, consumer := filledSink(t, configMapOf("a", "old", "3"))
			if c.otherType {
				k.storedType = nil
			}
			if err := k.Delete(c.deleted); err != nil {
				t.Fatal(err)
			}
			if got, want := readDeltas(t, consumer), []string{"Deleted a: " + c.want}; !slices.Equal(got, want) {
				t.Errorf("%q, expected %q", got, want)
			}
			if _, exists, err := k.indexer.GetByKey("a"); exists || err != nil {
				t.Errorf("it exists: %v, %v", exists, err)
			}
		})
	}
}
