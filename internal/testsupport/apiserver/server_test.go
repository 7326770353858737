package apiserver

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// TestEqualSourcesMakeEqualHistories, in however many steps: a process that replaces another
// one makes the same history at once.
func TestEqualSourcesMakeEqualHistories(t *testing.T) {
	const versions = 200
	server := func() *Server {
		return New(Options{Rand: rand.New(rand.NewPCG(1, 2)), Names: 10, Fill: func(rng *rand.Rand, obj Object) {
			obj.(*corev1.ConfigMap).Data = map[string]string{"value": string(rune('a' + rng.IntN(20)))}
		}})
	}
	atOnce, oneByOne := server(), server()
	atOnce.Advance(versions)
	again := 0
	for version := range versions {
		if diff := cmp.Diff(atOnce.ObjectsAt(version), oneByOne.Objects()); diff != "" {
			t.Fatalf("at version %d (-at once +one by one):\n%s", version, diff)
		}
		oneByOne.Advance(1)
	}
	events := oneByOne.Events()
	if diff := cmp.Diff(atOnce.Events(), events); diff != "" {
		t.Errorf("(-at once +one by one):\n%s", diff)
	}
	for i, e := range events[1:] {
		if deleted := events[i]; deleted.Type == watch.Deleted && Key(deleted.Object) == Key(e.Object) {
			again++
		}
	}
	if again == 0 {
		t.Error("no object is made anew right behind its deletion")
	}
}
