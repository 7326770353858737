package warmwatch_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// An httpServer answers each list with one ConfigMap, a, at resourceVersion 5, and keeps watches
// open. It writes down the requests:
//
//	LIST /api/v1/namespaces/ns/configmaps      WATCH ... rv=5      GET /api/v1/namespaces/kube-system
type httpServer struct {
	server *httptest.Server

	mu       sync.Mutex
	requests []string
	// uid is that of kube-system; without one the server refuses to tell it.
	uid string
}

func newHTTPServer(t *testing.T) *httpServer {
	s := &httpServer{}
	s.server = httptest.NewServer(s)
	t.Cleanup(s.server.Close)
	return s
}

// newTLSServer returns a server whose certificate clients can verify. The certificate is the
// same for all servers.
func newTLSServer(t *testing.T) *httpServer {
	s := &httpServer{}
	s.server = httptest.NewTLSServer(s)
	t.Cleanup(s.server.Close)
	return s
}

func (s *httpServer) config() *rest.Config {
	config := &rest.Config{Host: s.server.URL, QPS: -1}
	if s.server.TLS != nil {
		config.CAData = pemOf(s.server.Certificate())
		config.ServerName = "example.com"
	}
	return config
}

func (s *httpServer) with(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// take returns the requests since it was called last.
func (s *httpServer) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	requests := s.requests
	s.requests = nil
	return requests
}

// ServeHTTP implements [http.Handler].
func (s *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query, name := r.URL.Query(), "LIST "+r.URL.Path
	isWatch, isNamespace := query.Get("watch") != "", r.URL.Path == "/api/v1/namespaces/kube-system"
	switch {
	case isWatch:
		name = "WATCH " + r.URL.Path + " rv=" + query.Get("resourceVersion")
	case isNamespace:
		name = "GET " + r.URL.Path
	case query.Get("limit") == "1":
		name = "LIST limit=1"
	}
	s.mu.Lock()
	s.requests = append(s.requests, name)
	uid := s.uid
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case isNamespace && uid == "":
		w.WriteHeader(http.StatusForbidden)
		return
	case isNamespace:
		encode(w, map[string]any{"kind": "Namespace", "apiVersion": "v1", "metadata": map[string]any{"name": "kube-system", "uid": uid}})
		return
	case query.Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	case isWatch:
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	kind, apiVersion := "ConfigMapList", "v1"
	if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
		kind, apiVersion = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	encode(w, map[string]any{
		"kind": kind, "apiVersion": apiVersion, "metadata": map[string]any{"resourceVersion": "5"},
		"items": []any{map[string]any{
			"kind": strings.TrimSuffix(kind, "List"), "apiVersion": apiVersion,
			"metadata": map[string]any{"namespace": "ns", "name": "a", "uid": "1", "resourceVersion": "4", "labels": map[string]any{"x": "1"}},
		}},
	})
}

func encode(w http.ResponseWriter, answer any) {
	_ = json.NewEncoder(w).Encode(answer) // The client may have gone.
}
