package reflector

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// TestWhatIsMissingFromAStageIsNoticed: a scan finds nothing of a damaged page. A relist that
// is applied without its objects must not count as complete.
func TestWhatIsMissingFromAStageIsNoticed(t *testing.T) {
	for _, lost := range [][]string{{"a"}, {"c"}, {"a", "b", "c", "d"}} {
		db, err := persist.Open(context.Background(), filepath.Join(t.TempDir(), "cache.db"), persist.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		st := &stage{
			db: db, bucket: persist.Bucket{Space: "s", Name: stagedBucket}, newObject: func() any { return new(corev1.ConfigMap) },
			maxItems: 2, maxBytes: 1 << 20, memory: map[string]*record.Object{}, spilled: map[string]struct{}{},
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			value, err := record.Encode(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}})
			if err := errors.Join(err, st.put(name, value)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := db.Update(func(b *persist.Batch) { // As damage does.
			for _, key := range lost {
				b.Delete(st.bucket, key)
			}
		}); err != nil {
			t.Fatal(err)
		}
		n := 0
		err = st.each(func(items []stagedItem) error { n += len(items); return nil })
		if err == nil {
			t.Errorf("without %v: %d of 4 staged objects, and no error", lost, n)
		}
	}
}
