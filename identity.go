package warmwatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
	"github.com/warmwatch/warmwatch/internal/reflector"
	"github.com/warmwatch/warmwatch/internal/request"
)

func formOf(example runtime.Object) checkpoint.Form {
	switch example.(type) {
	case *unstructured.Unstructured:
		return checkpoint.FormUnstructured
	case *metav1.PartialObjectMetadata:
		return checkpoint.FormMetadata
	}
	return checkpoint.FormTyped
}

// storedType returns an example of the stored Go type.
func (s *SharedIndexInformer) storedType() runtime.Object {
	if s.opts.Transformed != nil {
		return s.opts.Transformed
	}
	return s.example
}

func (s *SharedIndexInformer) newObject() any {
	return reflect.New(reflect.TypeOf(s.storedType()).Elem()).Interface()
}

// identityOf returns the identity of the data, with selectors in the form in which equal ones
// are equal.
func identityOf(example runtime.Object, o InformerOptions) (checkpoint.Identity, error) {
	labelSelector, err := request.Labels(o.LabelSelector)
	if err != nil {
		return checkpoint.Identity{}, err
	}
	fieldSelector, err := request.Fields(o.FieldSelector)
	return checkpoint.Identity{
		Group: o.Resource.Group, Version: o.Resource.Version, Resource: o.Resource.Resource,
		Namespace: o.Namespace, LabelSelector: labelSelector, FieldSelector: fieldSelector,
		Name: o.Name, Form: formOf(example),
	}, err
}

// checkRequest refuses a List or a watch that does not ask for what the identity says: its
// objects would be served as what they are not. It says nothing of other requests.
func (s *SharedIndexInformer) checkRequest(r *http.Request) error {
	got, err := request.Of(r)
	if err != nil {
		return nil //nolint:nilerr // It is another request, or the server will refuse it.
	}
	want := request.Asked{
		Resource: s.opts.Resource, Namespace: s.identity.Namespace,
		LabelSelector: s.identity.LabelSelector, FieldSelector: s.identity.FieldSelector,
		Metadata: s.identity.Form == checkpoint.FormMetadata,
	}
	if got != want {
		err = fmt.Errorf("warmwatch: the ListerWatcher asks for %v, expected %v, as InformerOptions say", got, want)
	}
	if s.progress.requested(err) {
		s.logger.Error(err, "Refusing the requests of the ListerWatcher")
	}
	return err
}

// want returns what a checkpoint must match.
func (s *SharedIndexInformer) want(clusterID string) checkpoint.Want {
	w := checkpoint.Want{
		Identity:      s.identity,
		ClusterID:     clusterID,
		SchemaVersion: checkpoint.SchemaVersion(s.storedType()),
		Now:           time.Now(),
		MaxAge:        s.cache.opts.MaxAge,
		NeverResume:   s.opts.NeverResume || isEvents(s.opts.Resource),
		IndexVersion:  s.indexVersion(),
	}
	if s.transform != nil {
		if w.TransformVersion = s.opts.TransformVersion; w.TransformVersion == "" {
			w.TransformVersion = checkpoint.BinaryVersion()
		}
	}
	return w
}

// indexVersion identifies the index functions. When it changes, the indices are rebuilt.
func (s *SharedIndexInformer) indexVersion() string {
	indexers := s.indexer.GetIndexers()
	if len(indexers) == 0 {
		return ""
	}
	version := s.opts.IndexVersion
	if version == "" {
		version = checkpoint.BinaryVersion()
	}
	return version + " " + strings.Join(slices.Sorted(maps.Keys(indexers)), " ")
}

// isEvents reports whether r is Events. The API server keeps no watch cache for them,
// and answers an old version with a watch that closes at once (kubernetes#104171).
func isEvents(r schema.GroupVersionResource) bool {
	return r.Resource == "events" && (r.Group == "" || r.Group == "events.k8s.io")
}

// checkCluster asks, before the first list, which cluster the server belongs to.
func (s *SharedIndexInformer) checkCluster(ctx context.Context) (*reflector.Relisting, error) {
	ask := s.cache.opts.ClusterID
	if ask == nil || s.sink.ClusterKnown() {
		return nil, nil
	}
	id, err := ask(request.WithoutCheck(ctx))
	if err == nil && id == "" {
		err = errNoIdentity
	}
	if err != nil {
		if !isAnswer(err) {
			return nil, fmt.Errorf("warmwatch: ask for the cluster's identity: %w", err)
		}
		how := s.sink.SetUnknownCluster(err)
		if how == nil {
			s.logger.Error(err, "The API server does not tell which cluster it is")
			return nil, nil
		}
		s.logger.Error(err, "The API server does not tell which cluster it is: the stored objects are compared with its own", "reason", how.Reason)
		return how, nil
	}
	decision, err := s.sink.SetCluster(s.want(id))
	if err != nil {
		return nil, fmt.Errorf("warmwatch: store the cluster's identity: %w", err)
	}
	if decision.Action != checkpoint.ActionDiscard {
		return nil, nil
	}
	return &reflector.Relisting{Reason: decision.Reason, Rewrite: true, Rewound: true}, nil
}

var errNoIdentity = errors.New("Options.ClusterID returned no identity")

// isAnswer reports whether err is a server's refusal that will last. An expired token (401) will
// be renewed, and until then nothing else is answered either.
func isAnswer(err error) bool {
	return errors.Is(err, errNoIdentity) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}
