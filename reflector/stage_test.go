package reflector

import (
	"errors"
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
		k := newSink(t, persist.Options{MaxPendingBytes: 1}) // Each object goes to the file.
		db, st := k.db, newStage(k)
		for _, name := range []string{"a", "b", "c", "d"} {
			value, err := record.Encode(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}})
			if err := errors.Join(err, st.put(name, value)); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Update(func(b *persist.Batch) { // As damage does.
			for _, key := range lost {
				b.Delete(st.bucket, key)
			}
		}); err != nil {
			t.Fatal(err)
		}
		n := 0
		err := st.each(func(items []item) error { n += len(items); return nil })
		if err == nil {
			t.Errorf("without %v: %d of 4 staged objects, and no error", lost, n)
		}
	}
}
