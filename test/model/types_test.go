package model_test

import (
	"bytes"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport/process"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/persist"
)

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

func (l *life) informerOptions() warmwatch.InformerOptions {
	o := warmwatch.InformerOptions{Resource: process.ConfigMaps, Indexers: cache.Indexers{"color": l.byColor}}
	if l.secrets {
		o.Transformed = &corev1.Secret{}
	}
	return o
}

// newInformer makes the informer of a process.
func (l *life) newInformer() (*warmwatch.SharedIndexInformer, error) {
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

// transformedToSecrets is how the TransformVersion in the checkpoint of a process ends that makes Secrets.
const transformedToSecrets = " *v1.Secret"

// modelSpace is where the informer has its data in the file.
var modelSpace = checkpoint.Identity{Version: "v1", Resource: "configmaps", Form: checkpoint.FormTyped}.Space()

// checkpointIn returns the checkpoint of the informer in a file, and a zero one if it cannot be read.
func (m *model) checkpointIn(db *persist.DB) (r checkpoint.Record) {
	values := map[string][]byte{}
	for bucket, key := range map[string]string{"checkpoint": "resume", "store": "state"} {
		_, err := db.View(persist.Bucket{Space: modelSpace, Name: bucket}, key, func(it *persist.Item) error {
			payload, err := it.Payload()
			values[key] = bytes.Clone(payload)
			return err
		})
		if err != nil && !m.damaged {
			m.t.Error(err)
		}
	}
	if values["resume"] == nil {
		return r
	}
	var store struct{ ResourceVersion string }
	_ = json.Unmarshal(values["state"], &store) // It is empty if the file is damaged.
	r, err := checkpoint.Parse(values["resume"], store.ResourceVersion)
	if err != nil && !m.damaged {
		m.t.Error(err)
	}
	return r
}
