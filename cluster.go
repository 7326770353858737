package warmwatch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
	"github.com/warmwatch/warmwatch/internal/reflector"
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

// checkCluster asks, before the first list, which cluster the server belongs to.
func (s *SharedIndexInformer) checkCluster(ctx context.Context) (*reflector.Relisting, error) {
	p := s.parts.Load()
	ask := s.cache.opts.ClusterID
	if ask == nil && s.cache.wrapped.Load() {
		ask = s.clusterByTransport
	}
	if ask == nil || p.fromMemory() || p.sink.ClusterKnown() {
		return nil, nil
	}
	id, err := ask(ctx)
	if err == nil && id == "" {
		err = errNoIdentity
	}
	if err != nil {
		if !isAnswer(err) {
			return nil, fmt.Errorf("warmwatch: ask for the cluster's identity: %w", err)
		}
		how := p.sink.SetUnknownCluster(err)
		if errors.Is(err, request.ErrNotSeen) {
			p.logger.Info("The ListerWatcher's requests do not come to the transport that WrapTransport has wrapped: they are not compared with InformerOptions", "reason", err)
		}
		if how != nil {
			p.logger.Error(err, "The API server does not tell which cluster it is: the stored objects are compared with its own", "reason", how.Reason)
		} else if s.cache.opts.ClusterID != nil {
			p.logger.Error(err, "The API server does not tell which cluster it is")
		}
		return how, nil
	}
	decision, err := p.sink.SetCluster(s.want(id))
	if err != nil {
		return nil, fmt.Errorf("warmwatch: store the cluster's identity: %w", err)
	}
	if decision.Action != checkpoint.ActionDiscard {
		return nil, nil
	}
	return &reflector.Relisting{Reason: decision.Reason, Rewrite: true, Rewound: true}, nil
}

var errNoIdentity = errors.New("it has no identity")

// isAnswer reports whether err is a server's refusal that will last. An expired token (401) will
// be renewed, and until then nothing else is answered either.
func isAnswer(err error) bool {
	return errors.Is(err, errNoIdentity) || errors.Is(err, request.ErrNotSeen) ||
		apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}

// clusterByTransport asks the server that the ListerWatcher asks, with its credentials: for the
// UID of the namespace kube-system. Where that may not be read, the key of the certificate
// authority that vouches for the server stands for the cluster: usually each cluster has its own.
func (s *SharedIndexInformer) clusterByTransport(ctx context.Context) (string, error) {
	seen, err := s.look(ctx)
	if err == nil {
		err = s.checkRequest(seen.Asked)
	}
	if err != nil {
		return "", err
	}
	resp, err := seen.Get(ctx, "/api/v1/namespaces/"+metav1.NamespaceSystem)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		var ns metav1.PartialObjectMetadata
		err := json.NewDecoder(io.LimitReader(resp.Body, maxNamespaceBytes)).Decode(&ns)
		return string(ns.UID), err
	case http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
		if resp.TLS == nil || len(resp.TLS.VerifiedChains) == 0 {
			return "", errNoIdentity
		}
		chain := resp.TLS.VerifiedChains[0]
		key := sha256.Sum256(chain[len(chain)-1].RawSubjectPublicKeyInfo) // It outlives the certificate.
		return "authority " + hex.EncodeToString(key[:]), nil
	}
	return "", fmt.Errorf("the API server answers %s", resp.Status)
}

// maxNamespaceBytes is more than etcd stores of an object by default.
const maxNamespaceBytes = 4 << 20
