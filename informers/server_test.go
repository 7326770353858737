package informers_test

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

func TestMain(m *testing.M) { testsupport.Main(m, nil) }

// An apiServer answers each list of a resource of client-go's scheme with one object, ns/a, at
// resourceVersion 5, and keeps watches open. It writes down the lists:
//
//	LIST /api/v1/namespaces/ns/pods?labelSelector=x
type apiServer struct {
	server *httptest.Server
	kinds  map[schema.GroupVersionResource]string

	mu       sync.Mutex
	requests []string
	accepts  map[string]bool
	// uid is that of kube-system; without one the server refuses to tell it.
	uid string
}

func newAPIServer(t *testing.T) *apiServer { return startAPIServer(t, (*httptest.Server).Start) }

// newTLSServer returns a server whose certificate clients can verify.
func newTLSServer(t *testing.T) *apiServer { return startAPIServer(t, (*httptest.Server).StartTLS) }

func startAPIServer(t *testing.T, start func(*httptest.Server)) *apiServer {
	s := &apiServer{kinds: map[schema.GroupVersionResource]string{}, accepts: map[string]bool{}, uid: "one"}
	for kind := range scheme.Scheme.AllKnownTypes() {
		resource, _ := meta.UnsafeGuessKindToResource(kind)
		s.kinds[resource] = kind.Kind
	}
	s.server = httptest.NewUnstartedServer(s)
	start(s.server)
	t.Cleanup(s.server.Close)
	return s
}

func (s *apiServer) config() *rest.Config {
	config := &rest.Config{Host: s.server.URL + "/proxy", QPS: -1}
	if s.server.TLS != nil {
		config.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
		config.ServerName = "example.com"
	}
	return config
}

// take returns the lists since it was called last, sorted.
func (s *apiServer) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	requests := s.requests
	s.requests = nil
	slices.Sort(requests)
	return requests
}

// ServeHTTP implements [http.Handler].
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	path := strings.TrimPrefix(r.URL.Path, "/proxy")
	switch {
	case path == "/api/v1/namespaces/kube-system":
		s.mu.Lock()
		uid := s.uid
		s.mu.Unlock()
		if uid == "" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		encode(w, map[string]any{"kind": "Namespace", "apiVersion": "v1", "metadata": map[string]any{"name": "kube-system", "uid": uid}})
		return
	case query.Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	case query.Get("watch") != "":
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	s.mu.Lock()
	s.accepts[r.Header.Get("Accept")] = true
	if query.Get("limit") != "1" { // That is how a resumption is prepared.
		for _, own := range []string{"limit", "resourceVersion", "resourceVersionMatch"} {
			query.Del(own)
		}
		s.requests = append(s.requests, strings.TrimSuffix("LIST "+path+"?"+query.Encode(), "?"))
	}
	s.mu.Unlock()
	gv, kind := s.kindOf(path)
	listKind, item := kind+"List", kind
	if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
		gv, listKind, item = "meta.k8s.io/v1", "PartialObjectMetadataList", "PartialObjectMetadata"
	}
	encode(w, map[string]any{
		"kind": listKind, "apiVersion": gv, "metadata": map[string]any{"resourceVersion": "5"},
		"items": []any{map[string]any{
			"kind": item, "apiVersion": gv,
			"metadata": map[string]any{"namespace": "ns", "name": "a", "uid": "1", "resourceVersion": "4", "labels": map[string]any{"x": "1"}},
		}},
	})
}

// kindOf returns apiVersion and kind of what a path has.
func (s *apiServer) kindOf(path string) (apiVersion, kind string) {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	resource := schema.GroupVersionResource{Resource: segments[len(segments)-1]}
	if segments[0] == "api" {
		resource.Version = segments[1]
	} else {
		resource.Group, resource.Version = segments[1], segments[2]
	}
	return resource.GroupVersion().String(), s.kinds[resource]
}

func encode(w http.ResponseWriter, answer any) {
	_ = json.NewEncoder(w).Encode(answer) // The client may have gone.
}
