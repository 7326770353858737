package warmwatch_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"

	bolt "go.etcd.io/bbolt"
)

// heldUp is an object that cannot be written until hold is closed.
type heldUp struct {
	corev1.ConfigMap
	hold <-chan struct{}
}

func (h *heldUp) DeepCopyObject() runtime.Object {
	return &heldUp{ConfigMap: *h.DeepCopy(), hold: h.hold}
}

func (h *heldUp) MarshalJSON() ([]byte, error) {
	<-h.hold
	return json.Marshal(h.ConfigMap)
}

// TestADamagedSpaceWhileTheDiskDoesNotAnswer: nobody knows what an informer has in the file until
// the file was replaced, and that has to wait for the disk. The constructor says so, and the
// informer can be made once the disk answers.
func TestADamagedSpaceWhileTheDiskDoesNotAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, configMap("a")), testsupport.Path(t)
		fill(t, path, f, nil)

		var root uint64
		inFile(t, path, func(tx *bolt.Tx) error {
			return tx.ForEach(func(name []byte, space *bolt.Bucket) error {
				if strings.Contains(string(name), "configmaps") {
					root = uint64(space.Root())
				}
				return nil
			})
		})
		hold := make(chan struct{})
		blocked := newSource(t, &heldUp{ConfigMap: *configMap("b"), hold: hold})
		p := launch(t, path, blocked, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
			o.Logger = &testsupport.Quiet
			io.Name = "held up"
		}, &heldUp{})
		p.damaged = true
		p.run()
		advance(11 * time.Second)

		changeInPlace(t, path, func(b []byte) { clear(b[root*persist.PageBytes:][:persist.PageBytes]) })
		_, err := p.cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps})
		if !errors.Is(err, persist.ErrNoAnswer) {
			t.Errorf("the constructor returned %v", err)
		}
		close(hold)
		settle()
		informer, err := p.cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps})
		if err != nil {
			t.Fatal(err)
		}
		end := start(t, informer)
		settle()
		expectStore(t, informer, f)
		end()
	})
}
