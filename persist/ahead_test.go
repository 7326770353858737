package persist

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

func configMap(name string, sizeBytes int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"data": repeat(name, sizeBytes)}}
}

// stored decodes the value of a key.
func stored(t *testing.T, db *DB, key string, newObject func() any) (obj any, inMemory bool) {
	t.Helper()
	found, err := db.View(testBucket, key, func(it *Item) error {
		if o, ok := it.Value.(*record.Object); ok {
			obj, inMemory = o.Object, true
			return nil
		}
		payload, err := it.Payload()
		if err != nil {
			return err
		}
		rec, err := record.Parse(payload)
		if err != nil {
			return err
		}
		obj, err = rec.Decode(newObject)
		return err
	})
	if err != nil || !found {
		t.Fatalf("key %s: found %t, %v", key, found, err)
	}
	return obj, inMemory
}

// TestObjectsThatAreEncodedAhead are read back unchanged, whatever their size.
func TestObjectsThatAreEncodedAhead(t *testing.T) {
	db := open(t, testsupport.Path(t), manual)
	want := map[string]*corev1.ConfigMap{}
	for i, size := range []int{0, 1, 400, 5000, 96 << 10, 1 << 20} {
		key := fmt.Sprint(i)
		want[key] = configMap(key, size)
		o := record.NewObject(want[key], db.WritesSoon())
		apply(t, db, func(b *Batch) {
			b.Put(testBucket, key, o)
			b.Put(testBucket, "and "+key, o) // As a delta has it, too.
		})
	}
	flush(t, db)
	for key, cm := range want {
		for _, key := range []string{key, "and " + key} {
			if got, inMemory := stored(t, db, key, func() any { return &corev1.ConfigMap{} }); inMemory || !apiequality.Semantic.DeepEqual(cm, got) {
				t.Fatalf("key %s: in memory %t, -want +got:\n%s", key, inMemory, cmp.Diff(cm, got))
			}
		}
	}
}

// TestWhatIsEncodedAheadIsWrittenByTheNextCommit, when one has failed.
func TestWhatIsEncodedAheadIsWrittenByTheNextCommit(t *testing.T) {
	db := open(t, testsupport.Path(t), manual)
	put(t, db, "first", "1")
	flush(t, db)
	fill(db, true)
	want := configMap("name", 1<<20)
	o := record.NewObject(want, db.WritesSoon())
	apply(t, db, func(b *Batch) { b.Put(testBucket, "key", o) })
	if err := db.Flush(); err == nil {
		t.Fatal("the commit did not fail")
	}
	fill(db, false)
	flush(t, db)
	if got, inMemory := stored(t, db, "key", func() any { return &corev1.ConfigMap{} }); inMemory || !apiequality.Semantic.DeepEqual(want, got) {
		t.Errorf("in memory %t, -want +got:\n%s", inMemory, cmp.Diff(want, got))
	}
}

// nothing may be large, and may be encoded to no bytes at all.
type nothing struct{ large []byte }

func (n *nothing) Size() int { return len(n.large) }
func (n *nothing) MarshalToSizedBuffer(b []byte) (int, error) {
	return copy(b[len(b)-len(n.large):], n.large), nil
}
func (n *nothing) Unmarshal(b []byte) error { n.large = append([]byte(nil), b...); return nil }

func TestObjectsThatAreEncodedToNothing(t *testing.T) {
	db := open(t, testsupport.Path(t), manual)
	db.OnDamage(func(err error) { t.Errorf("the file is damaged: %v", err) })
	for i, size := range []int{100 << 10, 0, 0, 100 << 10, 0} {
		key, o := fmt.Sprint(i), record.NewObject(&nothing{make([]byte, size)}, db.WritesSoon())
		apply(t, db, func(b *Batch) { b.Put(testBucket, key, o) })
		flush(t, db)
		got, inMemory := stored(t, db, key, func() any { return &nothing{} })
		if n := len(got.(*nothing).large); inMemory || n != size {
			t.Errorf("in memory %t, %d bytes, expected %d", inMemory, n, size)
		}
	}
	if err := db.Err(); err != nil {
		t.Error(err)
	}
}
