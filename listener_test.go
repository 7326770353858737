package warmwatch

import (
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
)

// TestARemovedHandlerDoesNotWaitForTheStore: those that read a chunk hang, as on a slow
// disk. Handlers that wait behind them can be removed, and leave nothing behind.
func TestARemovedHandlerDoesNotWaitForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := fcache.NewFakeControllerSource()
		defer source.Shutdown()
		for i := range 3 {
			source.Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}})
		}
		c, err := Open(filepath.Join(t.TempDir(), "cache.db"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.NewSharedIndexInformer(source, &corev1.ConfigMap{}, InformerOptions{Resource: corev1.SchemeGroupVersion.WithResource("configmaps")})
		if err != nil {
			t.Fatal(err)
		}
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			s.Run(stop)
		}()
		defer func() {
			close(stop)
			<-done
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		for range chunkReads {
			s.reads <- struct{}{}
		}
		told := 0
		stays, err := s.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { told++ }})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 500 {
			h, err := s.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { t.Error("told of an object after it was removed") }})
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				synctest.Wait() // It waits for the store now; others are removed before they begin.
			}
			if err := cache.ShutDownEventHandler(s, h); err != nil {
				t.Fatal(err)
			}
		}
		if stays.HasSynced() || told > 0 {
			t.Error("the store was read")
		}
		for range chunkReads {
			<-s.reads
		}
		synctest.Wait()
		if !stays.HasSynced() || told != 3 {
			t.Errorf("told of %d objects", told)
		}
	})
}
