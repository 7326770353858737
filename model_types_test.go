package warmwatch

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/persist"
)

var modelResource = corev1.SchemeGroupVersion.WithResource("configmaps")

// transforms are those of the processes of a model. Some return another Go type than others: no object of another type
// than the process's is given to anybody.
type transforms struct {
	// secrets says that the last process that began makes Secrets of the ConfigMaps.
	secrets bool
}

// transform is that of the process.
func (l *life) transform(obj any) (any, error) {
	cm := obj.(*corev1.ConfigMap)
	if !l.secrets {
		return cm, nil
	}
	return &corev1.Secret{ObjectMeta: cm.ObjectMeta, StringData: cm.Data}, nil
}

// configMap returns an object that the process is given as it was before the transform, and nil if it is given none.
func (l *life) configMap(obj any) *corev1.ConfigMap {
	secret, isSecret := obj.(*corev1.Secret)
	if obj != nil && l != nil && isSecret != l.secrets {
		l.m.t.Errorf("a %T is given to a process whose transform returns Secrets: %t", obj, l.secrets)
	}
	if isSecret {
		return &corev1.ConfigMap{ObjectMeta: secret.ObjectMeta, Data: secret.StringData}
	}
	cm, _ := obj.(*corev1.ConfigMap)
	return cm
}

func (l *life) informerOptions() InformerOptions {
	o := InformerOptions{Resource: modelResource, Indexers: cache.Indexers{"color": l.byColor}}
	if l.secrets {
		o.Transformed = &corev1.Secret{}
	}
	return o
}

// newInformer makes the informer of a process.
func (l *life) newInformer() (*SharedIndexInformer, error) {
	s, err := l.cache.NewSharedIndexInformer(l.link, &corev1.ConfigMap{}, l.informerOptions())
	if err == nil && l.m.transforms != nil {
		err = s.SetTransform(l.transform)
	}
	return s, err
}

// chooseType chooses what the transform of a process returns. What a reconciler has found of another type, it
// need not be given once it is deleted.
func (m *model) chooseType(l *life) {
	if m.transforms == nil {
		return
	}
	if m.rng.IntN(4) == 0 {
		m.transforms.secrets = !m.transforms.secrets
		m.shadows.forgetObjects()
	}
	l.secrets = m.transforms.secrets
}

// checkTypes is called when a process has left a file.
func (m *model) checkTypes(left remains) {
	if m.transforms == nil {
		return
	}
	if left.secrets != m.transforms.secrets {
		m.stats.OtherType++
		m.shadows.forgetObjects()
	}
}

// newReader makes an informer that only reads the file, whatever the Go type of its objects, and returns what
// its checkpoint must match.
func (l *life) newReader() (*SharedIndexInformer, checkpoint.Want, error) {
	stored, err := l.m.checkpointOf(l.cache)
	if err != nil && !l.m.damaged {
		l.m.t.Error(err)
	}
	l.secrets = stored.TransformVersion == secretsVersion
	l.informer, err = l.cache.NewSharedIndexInformer(l.m.server, &corev1.ConfigMap{}, l.informerOptions())
	if err != nil {
		return nil, checkpoint.Want{}, err
	}
	want := l.informer.want("")
	want.TransformVersion = stored.TransformVersion
	return l.informer, want, nil
}

// secretsVersion is the TransformVersion in the checkpoint of a process that makes Secrets.
const secretsVersion = unknownTransform + " *v1.Secret"

// checkpointOf returns the checkpoint of the informer in a file.
func (m *model) checkpointOf(c *Cache) (r checkpoint.Record, err error) {
	space := identityOf(&corev1.ConfigMap{}, request.Asked{Resource: modelResource}).Space()
	_, err = c.db.View(persist.Bucket{Space: space, Name: "checkpoint"}, "resume", func(it *persist.Item) error {
		payload, err := it.Payload()
		if err == nil {
			r, err = checkpoint.Parse(payload, "")
		}
		return err
	})
	return r, err
}
