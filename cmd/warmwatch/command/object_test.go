package command

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// A Disk is what a transform may return: a type that is in no scheme.
type Disk struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Secret            string `json:"secret"`
}

// TestDecodeUnknownTypes: of generated types the metadata can be shown, of others all.
func TestDecodeUnknownTypes(t *testing.T) {
	i := &informer{space: "secrets/v1-0", record: &checkpoint.Record{Identity: checkpoint.Identity{Group: "example.com", Version: "v1"}}}
	for name, obj := range map[string]any{
		"generated": pod("a", "one"),
		"metadata":  &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}},
		"other":     &Disk{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Secret: secret},
	} {
		o, err := record.Encode(obj)
		if err != nil {
			t.Fatal(err)
		}
		stored := bytes.Replace(o.Record(), []byte("k8s.io/api/core/v1.Pod"), []byte("k8s.io/api/core/v1.Pot"), 1)
		content := map[string]any{}
		decoded, err := i.decode(stored, false)
		if err == nil {
			err = json.Unmarshal(persist.JSON(decoded), &content)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		metadata := content["metadata"].(map[string]any)
		if metadata["namespace"] != "ns" || metadata["name"] != "a" {
			t.Errorf("%s: %v", name, content)
		}
		kinds := map[string]string{"generated": "Pot", "metadata": "PartialObjectMetadata", "other": "Disk"}
		if content["kind"] != kinds[name] || content["apiVersion"] != "example.com/v1" {
			t.Errorf("%s is a %v of %v", name, content["kind"], content["apiVersion"])
		}
		if name == "other" && content["secret"] != masked {
			t.Errorf("a field that a transform has made of a Secret is shown: %v", content)
		}
	}
	if _, err := i.decode([]byte("x"), false); err == nil {
		t.Error("no error for what is no record")
	}
}

func TestSizes(t *testing.T) {
	got := map[int64]string{}
	for _, n := range []int64{0, 999, 1000, 1024, 4 << 20, 300 << 30, 5 << 50} {
		got[n] = sizeOf(n)
	}
	want := map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 KiB", 1024: "1.0 KiB", 4 << 20: "4.0 MiB", 300 << 30: "300.0 GiB", 5 << 50: "5120.0 TiB"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
