package process

import (
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// Busy returns a Cache for benchmarks: 10 informers with 5,000 objects and two handlers each.
func Busy(b *testing.B) *warmwatch.Cache {
	b.Helper()
	c, err := warmwatch.Open(b.Context(), filepath.Join(b.TempDir(), "cache.db"), warmwatch.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	var objects []runtime.Object
	for i := range 5000 {
		objects = append(objects, source.ConfigMap(fmt.Sprint("object-", i), "content"))
	}
	var wait []cache.DoneChecker
	for i := range 10 {
		s, err := c.NewSharedIndexInformer(source.Of(objects...), &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: ConfigMaps, Name: fmt.Sprint(i)})
		if err != nil {
			b.Fatal(err)
		}
		plain, err := s.AddEventHandler(cache.ResourceEventHandlerFuncs{})
		if err != nil {
			b.Fatal(err)
		}
		durable, err := s.AddDurableEventHandler("durable", cache.ResourceEventHandlerFuncs{}, warmwatch.DurableOptions{})
		if err != nil {
			b.Fatal(err)
		}
		wait = append(wait, plain.HasSyncedChecker(), durable.HasSyncedChecker())
		go s.RunWithContext(b.Context())
	}
	if !cache.WaitFor(b.Context(), "", wait...) {
		b.Fatal("not synced")
	}
	return c
}
