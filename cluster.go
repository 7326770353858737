package warmwatch

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

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

// checkCluster asks, before the first list, which cluster the server belongs to. Objects that were
// not served, because they came from another server, are served if it is their cluster.
func (s *SharedIndexInformer) checkCluster(ctx context.Context) (*reflector.Relisting, error) {
	p := s.parts.Load()
	ask := s.cache.opts.ClusterID
	if ask == nil && s.cache.wrapped.Load() {
		ask = s.clusterByTransport
	}
	if ask == nil || p.fromMemory() || p.sink.ClusterKnown() {
		return nil, nil
	}
	how, err := s.askCluster(ctx, p, ask)
	switch {
	case !s.unverified:
	case err != nil && s.servesIfAway:
		s.progress.startsFromDisk()
		s.serveStored()
		s.unverified = false
	case err == nil && how == nil:
		s.serveStored()
	}
	s.unverified = s.unverified && err != nil
	if err == nil && how == nil {
		if indexErr := p.indexer.IndexErr(); indexErr != nil { // Of an index that was added meanwhile.
			how = &reflector.Relisting{Reason: "index entries may be wrong: " + indexErr.Error(), Rewrite: true}
		}
	}
	return how, err
}

func (s *SharedIndexInformer) askCluster(ctx context.Context, p *parts, ask func(context.Context) (string, error)) (*reflector.Relisting, error) {
	asking, cancel := context.WithTimeout(ctx, clusterPatience)
	defer cancel()
	id, err := ask(asking)
	if known := p.sink.Cluster(); isRefusal(id, err) && known != "" && !isAuthority(known) {
		if s.refusesAll(asking) {
			return nil, errors.New("warmwatch: ask for the cluster's identity: the API server refuses every request")
		}
		id, err = ask(asking) // It may have become ready between these two questions.
	}
	if !isRefusal(id, err) {
		s.refused = time.Time{}
	}
	if err == nil && id == "" {
		err = errNoIdentity
	}
	if err != nil {
		if !isAnswer(err) {
			return nil, fmt.Errorf("warmwatch: ask for the cluster's identity: %w", err)
		}
		how, failed := p.sink.SetUnknownCluster(err, s.server)
		if failed != nil {
			return nil, fmt.Errorf("warmwatch: store which server the objects came from: %w", failed)
		}
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

// isRefusal reports whether a server has answered, and not told which cluster it is.
func isRefusal(id string, err error) bool {
	return isAuthority(id) || id == "" && (err == nil || isAnswer(err))
}

var errNoIdentity = errors.New("it has no identity")

// clusterPatience is how long a server may take to tell which cluster it is, the time included
// that the client's rate limiter takes, and answerPatience how long one request may take. Then it
// is asked again.
const (
	clusterPatience = time.Minute
	answerPatience  = 10 * time.Second
)

// isAnswer reports whether err is a server's refusal that will last.
func isAnswer(err error) bool {
	var refusal apierrors.APIStatus
	if errors.As(err, &refusal) {
		return !isPutOff(int(refusal.Status().Code))
	}
	return errors.Is(err, errNoIdentity) || errors.Is(err, request.ErrNotSeen)
}

// isPutOff reports whether a server that answers with this code may answer otherwise later. An
// expired token (401) will be renewed, and until then nothing else is answered either.
func isPutOff(code int) bool {
	switch code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented:
		return false
	}
	return code >= http.StatusInternalServerError
}

// clusterByTransport asks the server that the ListerWatcher asks, with its credentials: for the
// UID of the namespace kube-system. Where that cannot be read, the key of the certificate
// authority that vouches for the server stands for the cluster: usually each cluster has its own.
func (s *SharedIndexInformer) clusterByTransport(ctx context.Context) (string, error) {
	seen, err := s.lookAgain(ctx)
	if err == nil {
		err = s.checkRequest(seen.Asked)
	}
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	resp, err := seen.Get(ctx, "/api/v1/namespaces/"+metav1.NamespaceSystem)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusOK:
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxNamespaceBytes))
		if err != nil {
			return "", err
		}
		var ns metav1.PartialObjectMetadata
		if err := json.Unmarshal(body, &ns); err == nil && ns.UID != "" {
			s.putOff = time.Time{}
			return string(ns.UID), nil
		}
	case isPutOff(resp.StatusCode) && !s.refusesOnlyThis(ctx, seen):
		return "", fmt.Errorf("the API server answers %s", resp.Status)
	}
	return authorityOf(resp.TLS)
}

// refusesOnlyThis reports whether the server has put off the question which cluster it is for
// refusalPatience, and answers what the ListerWatcher asks: a gateway may let no other request
// through.
func (s *SharedIndexInformer) refusesOnlyThis(ctx context.Context, seen *request.Seen) bool {
	return !isPatient(&s.putOff) && seen.Answers(ctx)
}

// refusesAll reports whether the server, which did not tell which cluster it is, does not answer what the
// ListerWatcher asks either: one that starts refuses every request before it knows the roles.
func (s *SharedIndexInformer) refusesAll(ctx context.Context) bool {
	if !s.cache.wrapped.Load() || !isPatient(&s.refused) {
		return false
	}
	seen, err := s.lookAgain(ctx)
	if err != nil {
		return !errors.Is(err, request.ErrNotSeen)
	}
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	return !seen.Answers(ctx)
}

// isPatient reports whether refusalPatience has not passed since, which is now if it is zero.
func isPatient(since *time.Time) bool {
	if since.IsZero() {
		*since = time.Now()
	}
	return time.Since(*since) < refusalPatience
}

// refusalPatience is longer than an API server that starts takes from the first answer it gives
// to the first of each kind.
const refusalPatience = 30 * time.Second

// authorityOf returns the identity of a cluster of which only the connection is known.
func authorityOf(connection *tls.ConnectionState) (string, error) {
	if connection == nil || len(connection.VerifiedChains) == 0 {
		return "", errNoIdentity
	}
	chain := connection.VerifiedChains[0]
	key := sha256.Sum256(chain[len(chain)-1].RawSubjectPublicKeyInfo) // It outlives the certificate.
	return authorityPrefix + hex.EncodeToString(key[:]), nil
}

const authorityPrefix = "authority "

// isAuthority reports whether an identity is one of authorityOf.
func isAuthority(id string) bool { return strings.HasPrefix(id, authorityPrefix) }

// maxNamespaceBytes is more than etcd stores of an object by default.
const maxNamespaceBytes = 4 << 20
