package warmwatch

import (
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/internal/sink"
	"github.com/warmwatch/warmwatch/persist"
)

var modelResource = corev1.SchemeGroupVersion.WithResource("configmaps")

// transforms are those of the processes of a model, which are all informers of NewInformer.
type transforms struct {
	// named says that transforms of different Go types have different versions: no object of another type
	// than the process's is given to anybody.
	named bool
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

// transformVersion returns the TransformVersion of the process.
func (l *life) transformVersion() string {
	if !l.strict {
		return ""
	}
	return fmt.Sprintf("secrets: %t", l.secrets)
}

// configMap returns an object that the process is given as it was before the transform, and nil if it is given none.
func (l *life) configMap(obj any) *corev1.ConfigMap {
	secret, isSecret := obj.(*corev1.Secret)
	if obj != nil && l != nil && l.strict && isSecret != l.secrets {
		l.m.t.Errorf("a %T is given to a process whose transform returns Secrets: %t", obj, l.secrets)
	}
	if isSecret {
		return &corev1.ConfigMap{ObjectMeta: secret.ObjectMeta, Data: secret.StringData}
	}
	cm, _ := obj.(*corev1.ConfigMap)
	return cm
}

// newInformer makes the informer of a process.
func (l *life) newInformer() (*SharedIndexInformer, error) {
	m, indexers := l.m, cache.Indexers{"color": l.byColor}
	if m.transforms == nil {
		return l.cache.NewSharedIndexInformer(l.link, &corev1.ConfigMap{}, InformerOptions{
			Resource: modelResource, Indexers: indexers,
		})
	}
	transport := l.cache.WrapTransport(refusing{}).(request.Transport)
	s := l.cache.NewInformer(shownListerWatcher{l.link, transport}, &corev1.ConfigMap{}, 0, indexers).(*SharedIndexInformer)
	return s, s.SetTransform(l.transform)
}

// refusing is a server that says nothing of itself.
type refusing struct{}

func (refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusForbidden, Request: r, ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody}, nil
}

// shownListerWatcher shows the transport what it would ask for.
type shownListerWatcher struct {
	*modelLink
	transport request.Transport
}

func (lw shownListerWatcher) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if !request.IsLook(ctx) {
		return lw.modelLink.ListWithContext(ctx, o)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server/api/v1/configmaps", nil)
	if err != nil {
		return nil, err
	}
	return nil, lw.transport.Show(r)
}

func (lw shownListerWatcher) List(o metav1.ListOptions) (runtime.Object, error) {
	return lw.ListWithContext(context.Background(), o)
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
	l.secrets, l.strict = m.transforms.secrets, m.transforms.named
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
	o := InformerOptions{Resource: modelResource, Indexers: cache.Indexers{"color": l.byColor}}
	stored, err := l.m.checkpointOf(l.cache)
	if err != nil && !l.m.damaged {
		l.m.t.Error(err)
	}
	var other runtime.Object = &corev1.Secret{}
	if l.secrets = stored.Type != ""; l.secrets {
		o.Transformed, other = other, &corev1.ConfigMap{}
	}
	l.informer, err = l.cache.NewSharedIndexInformer(l.m.server, &corev1.ConfigMap{}, o)
	if err != nil {
		return nil, checkpoint.Want{}, err
	}
	if stored.Rewound || stored.State != checkpoint.StateComplete { // It may have objects of both.
		l.informer.parts.Load().indexer.AlsoReads(func() any { return sink.ExampleOf(other) })
	}
	want := l.informer.want("")
	want.Type, want.TransformVersion, want.Server = stored.Type, stored.TransformVersion, stored.Servers
	return l.informer, want, nil
}

// checkpointOf returns the checkpoint of the informer in a file.
func (m *model) checkpointOf(c *Cache) (r checkpoint.Record, err error) {
	space := identityOf(&corev1.ConfigMap{}, request.Asked{Resource: modelResource}).Space()
	_, err = c.db.View(persist.Bucket{Space: space, Name: "checkpoint"}, "resume", func(it *persist.Item) error {
		payload, err := it.Payload()
		if err == nil {
			r, err = checkpoint.Parse(payload)
		}
		return err
	})
	return r, err
}
