package persist

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

var goldenPath = filepath.Join("testdata", "format-v1.db")

// goldenObjects are one of each codec.
func goldenObjects() map[string]any {
	return map[string]any{
		"shop/pod": &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod", UID: "u-1", ResourceVersion: "41", Labels: map[string]string{"a": "b"}},
			Spec:       corev1.PodSpec{NodeName: "node-1"},
		},
		"shop/widget": &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"namespace": "shop", "name": "widget", "uid": "u-2", "resourceVersion": "42"},
			"spec":     map[string]any{"int": int64(1) << 60, "float": 1.5, "nil": nil, "list": []any{true, "x"}},
		}},
		"shop/custom": &goldenCustom{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "custom", UID: "u-3", ResourceVersion: "43"},
			Answer:     42,
		},
	}
}

// goldenCustom has no protobuf.
type goldenCustom struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Answer            int `json:"answer"`
}

var goldenNew = map[string]func() any{
	"shop/pod":    func() any { return new(corev1.Pod) },
	"shop/custom": func() any { return new(goldenCustom) },
}

func goldenBytes() map[string]string {
	want := map[string]string{"": "empty key", "empty value": "", "large": repeat("0123456789", 1000), "\x00\xff": "binary"}
	for i := range 200 { // More than one page.
		want[fmt.Sprintf("%03d", i)] = repeat(fmt.Sprint(i), 10)
	}
	return want
}

func writeGolden(t *testing.T) {
	if err := os.RemoveAll(goldenPath); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(goldenPath), 0o755); err != nil {
		t.Fatal(err)
	}
	db := open(t, goldenPath, manual)
	for key, obj := range goldenObjects() {
		o, err := record.Encode(obj)
		if err != nil {
			t.Fatal(err)
		}
		o.SetSeq(7)
		apply(t, db, func(b *Batch) { b.Put(Bucket{"space", "objects"}, key, o.Record()) })
	}
	for key, v := range goldenBytes() {
		put(t, db, key, v)
	}
	flush(t, db)
	for key := range goldenBytes() { // Leaves free pages.
		put(t, db, "gone"+key, "x")
	}
	flush(t, db)
	for key := range goldenBytes() {
		apply(t, db, func(b *Batch) { b.Delete(testBucket, "gone"+key) })
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	trimmed := testsupport.ReadUsed(t, goldenPath)
	if err := os.WriteFile(goldenPath, trimmed, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestFilesOfFormat1OpenForEver: do not change the file, and do not write it
// anew. A new format has a new version, and a new file.
func TestFilesOfFormat1OpenForEver(t *testing.T) {
	if *update {
		writeGolden(t)
	}
	path := testsupport.Path(t)
	testsupport.CopyFile(t, goldenPath, path)
	db := openSound(t, path, manual)
	if names := setAside(t, path); len(names) != 0 {
		t.Fatalf("set aside: %v", names)
	}
	if diff := cmp.Diff(goldenBytes(), contents(t, db)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for key, want := range goldenObjects() {
		found, err := db.View(Bucket{"space", "objects"}, key, func(it *Item) error {
			payload, err := it.Payload()
			if err != nil {
				return err
			}
			r, err := record.Parse(payload)
			if err != nil {
				return err
			}
			if r.Seq != 7 || r.UID == "" || r.ResourceVersion == "" {
				t.Errorf("%s: envelope %+v", key, r)
			}
			got, err := r.Decode(goldenNew[key])
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", key, diff)
			}
			return err
		})
		if err != nil || !found {
			t.Errorf("%s: found %v, %v", key, found, err)
		}
	}
	put(t, db, "new", "value") // It can be written to as well.
	flush(t, db)
}
