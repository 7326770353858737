package warmwatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/reflector"
)

// KubeSystemUID returns a function for Options.ClusterID: the UID of the
// namespace kube-system, which every cluster has and none shares.
func KubeSystemUID(client corev1.NamespacesGetter) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		ns, err := client.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return string(ns.UID), nil
	}
}

// answerPatience is how long a server may take to answer a small request of ours. Then it is asked again.
const answerPatience = 10 * time.Second

// questionPatience is how long the server may take to answer what bySeen asks: over a slow link the events of the watch may
// come first. The stored objects can be read meanwhile.
const questionPatience = 2 * time.Minute

// askCluster asks which cluster the server belongs to, until it has told. It returns how to relist if the stored
// objects are of another one. A refusal, or no answer, proves nothing.
func (s *SharedIndexInformer) askCluster(ctx context.Context) *reflector.Relisting {
	p := s.parts.Load()
	ask := s.cache.opts.ClusterID
	if ask == nil {
		ask = bySeen(s, askClusterID)
	}
	if ask == nil || p.fromMemory() || p.sink.ClusterKnown() {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	id, err := ask(asking)
	if err == nil && id == "" {
		err = errors.New("it has no identity")
	}
	var decision checkpoint.Decision
	if err == nil {
		decision, err = p.sink.SetCluster(s.want(id))
	}
	switch {
	case errors.Is(err, request.ErrNotSeen):
		s.clusterLogged.Do(func() {
			p.logger.Info("The ListerWatcher's requests do not come to the transport that WrapTransport has wrapped: they are not compared with InformerOptions", "reason", err)
		})
	case err != nil && s.cache.opts.ClusterID != nil:
		s.clusterLogged.Do(func() { p.logger.Error(err, "It is not known yet which cluster the API server belongs to") })
	case err != nil:
		p.logger.V(2).Info("It is not known yet which cluster the API server belongs to", "err", err)
	case decision.Action == checkpoint.ActionDiscard:
		return relistingOf(decision)
	}
	return nil
}

// bySeen returns what asks the server by the request that the ListerWatcher makes, with its credentials; nil if its
// requests are not seen.
func bySeen[T any](s *SharedIndexInformer, ask func(context.Context, *request.Seen) (T, error)) func(context.Context) (T, error) {
	if s.parts.Load().fromMemory() || !s.cache.wrapped.Load() {
		return nil
	}
	return func(ctx context.Context) (answer T, err error) {
		ctx, cancel := context.WithTimeout(ctx, questionPatience)
		defer cancel()
		seen, err := s.lookAgain(ctx)
		if err != nil {
			return answer, err
		}
		return ask(ctx, seen)
	}
}

// askClusterID asks the server for the UID of the namespace kube-system.
func askClusterID(ctx context.Context, seen *request.Seen) (string, error) {
	resp, err := seen.Get(ctx, "/api/v1/namespaces/"+metav1.NamespaceSystem)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the API server answers %s", resp.Status)
	}
	var ns metav1.PartialObjectMetadata
	err = json.NewDecoder(io.LimitReader(resp.Body, maxNamespaceBytes)).Decode(&ns)
	return string(ns.UID), err
}

// maxNamespaceBytes is more than etcd stores of an object by default.
const maxNamespaceBytes = 4 << 20

// askForOne asks the server for one object.
func askForOne(ctx context.Context, seen *request.Seen) (request.Answer, error) { return seen.Ask(ctx) }

// schemaAge is how old the server's answer about its schemas may be: informers that start, or lose
// their history, at the same time ask once.
const schemaAge = 2 * time.Second

// schemas has the last answer of a server about its schemas.
type schemas struct {
	turn   chan struct{} // Its holder may ask, and use the rest.
	server string
	asked  time.Time
	hashes map[string]string
}

func newSchemas() *schemas { return &schemas{turn: make(chan struct{}, 1)} }

// of returns a hash of the schema of the objects that a request is about.
func (s *schemas) of(ctx context.Context, seen *request.Seen) (string, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if server := seen.Server(); s.server != server || time.Since(s.asked) > schemaAge {
		asked := time.Now()
		hashes, err := seen.Schemas(ctx)
		if err != nil {
			return "", err
		}
		s.server, s.asked, s.hashes = server, asked, hashes
	}
	path := seen.GroupVersionPath()
	if s.hashes[path] == "" {
		return "", fmt.Errorf("the server has no hash of the schema of %s", path)
	}
	return s.hashes[path], nil
}
