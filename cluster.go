package warmwatch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/warmwatch/warmwatch/internal/request"
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

// questionPatience is how long the server may take to answer a request of bySeen: over a slow link the events of the
// watch may come first. The stored objects can be read meanwhile.
const questionPatience = 2 * time.Minute

// bySeen returns a function that calls ask with the request that look returns. It returns nil if look is nil.
func bySeen[T any](look func(context.Context) (*request.Seen, error), ask func(context.Context, *request.Seen) (T, error)) func(context.Context) (T, error) {
	if look == nil {
		return nil
	}
	return func(ctx context.Context) (answer T, err error) {
		ctx, cancel := context.WithTimeout(ctx, questionPatience)
		defer cancel()
		seen, err := look(ctx)
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

// maxNamespaceBytes is more than the largest object in etcd by default.
const maxNamespaceBytes = 4 << 20

// askForOne asks the server for one object.
func askForOne(ctx context.Context, seen *request.Seen) (request.Answer, error) { return seen.Ask(ctx) }

// schemaAge is how old the server's answer about its schemas may be: informers that start, or lose
// their history, at the same time ask once.
const schemaAge = 2 * time.Second

// schemas has the last answer of a server about its schemas.
type schemas struct {
	turn   chan struct{} // Its holder may ask, and use the other fields.
	server string
	asked  time.Time
	hashes map[string]string
}

func newSchemas() *schemas { return &schemas{turn: make(chan struct{}, 1)} }

// of returns a hash of the schema of a request's objects.
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
