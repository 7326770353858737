package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// LabelParent is the label of a child, and the index over it.
const LabelParent = "parent"

// addController adds a plain handler that makes a ConfigMap for each object that is no child and has none in the cache,
// as most controllers do. It takes longer for a new object than a commit: the file has the object then, and not yet the
// child.
func (i *Informer) addController(ctx context.Context) error {
	cfg, err := LoadConfig(i.spec.Kubeconfig, i.spec.Context)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	_, err = i.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{AddFunc: func(obj any, initial bool) {
		object, err := meta.Accessor(obj)
		if err != nil || object.GetLabels()[LabelParent] != "" {
			return
		}
		if !initial {
			time.Sleep(1500 * time.Millisecond)
		}
		children, err := i.GetIndexer().ByIndex(LabelParent, object.GetName())
		if err == nil && len(children) == 0 {
			_, err = client.CoreV1().ConfigMaps(object.GetNamespace()).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				GenerateName: object.GetName() + "-", Labels: map[string]string{LabelParent: object.GetName()},
			}}, metav1.CreateOptions{})
		}
		if err != nil && ctx.Err() == nil {
			panic(fmt.Errorf("a child of %s: %w", object.GetName(), err))
		}
	}})
	return err
}
