// Package httpserver is a kube-apiserver of one object, or of the ConfigMaps of a World, for tests of
// what clients ask for. What a server answers over time, package apiserver has.
package httpserver

import (
	"encoding/json"
	"encoding/pem"
	"maps"
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
)

// A Server answers each list of a resource of client-go's scheme with one object, ns/a, at
// resourceVersion 5, and keeps watches open. It writes down the requests:
//
//	LIST /api/v1/namespaces/ns/pods?labelSelector=x      LIST limit=1 (before a watch is resumed)
//	WATCH /api/v1/namespaces/ns/pods rv=5                GET /api/v1/namespaces/kube-system
//	GET /openapi/v3
type Server struct {
	server *httptest.Server
	kinds  map[schema.GroupVersionResource]string

	mu       sync.Mutex
	uid      string
	world    *World
	requests []string
	accepts  map[string]bool
}

// New returns a server whose namespace kube-system has this UID; without one it may not be read.
func New(t *testing.T, uid string) *Server { return start(t, uid, (*httptest.Server).Start) }

// NewTLS is New, for a server whose certificate clients can verify. The certificate is the same
// for all servers.
func NewTLS(t *testing.T, uid string) *Server { return start(t, uid, (*httptest.Server).StartTLS) }

func start(t *testing.T, uid string, start func(*httptest.Server)) *Server {
	s := &Server{kinds: map[schema.GroupVersionResource]string{}, uid: uid, accepts: map[string]bool{}}
	for kind := range scheme.Scheme.AllKnownTypes() {
		resource, _ := meta.UnsafeGuessKindToResource(kind)
		s.kinds[resource] = kind.Kind
	}
	s.server = httptest.NewUnstartedServer(s)
	start(s.server)
	t.Cleanup(s.server.Close)
	return s
}

// Close stops the server.
func (s *Server) Close() { s.server.Close() }

// Config is for clients, which reach the server by a proxy's path.
func (s *Server) Config() *rest.Config {
	config := &rest.Config{Host: s.server.URL + proxy, QPS: -1}
	if s.server.TLS != nil {
		config.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
		config.ServerName = "example.com"
	}
	return config
}

const proxy = "/proxy"

// SetUID makes it another cluster.
func (s *Server) SetUID(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uid = uid
}

// Take returns the requests since it was called last.
func (s *Server) Take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	requests := s.requests
	s.requests = nil
	return requests
}

// TakeLists is Take for lists of all objects, sorted.
func (s *Server) TakeLists() (lists []string) {
	for _, request := range s.Take() {
		if strings.HasPrefix(request, "LIST /") {
			lists = append(lists, request)
		}
	}
	slices.Sort(lists)
	return lists
}

// Accepts returns the Accept headers of all lists.
func (s *Server) Accepts() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.accepts)
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query, path := r.URL.Query(), strings.TrimPrefix(r.URL.Path, proxy)
	isWatch, isNamespace, isSchema := query.Get("watch") != "", path == "/api/v1/namespaces/kube-system", path == "/openapi/v3"
	isMetadata := strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList")
	var name string
	switch {
	case isSchema:
		name = "GET " + path
	case isWatch:
		name = "WATCH " + path + " rv=" + query.Get("resourceVersion")
	case isNamespace:
		name = "GET " + path
	case query.Get("limit") == "1":
		name = "LIST limit=1"
	default:
		for _, own := range []string{"limit", "resourceVersion", "resourceVersionMatch"} {
			query.Del(own)
		}
		name = strings.TrimSuffix("LIST "+path+"?"+query.Encode(), "?")
	}
	s.mu.Lock()
	if s.world != nil {
		name = s.world.name(r, name)
	}
	s.requests = append(s.requests, name)
	if !isWatch && !isNamespace && !isSchema {
		s.accepts[r.Header.Get("Accept")] = true
	}
	uid, world := s.uid, s.world
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case world != nil && !isNamespace:
		s.mu.Lock()
		defer s.mu.Unlock()
		world.answer(s, w, r)
	case isNamespace && uid == "", isSchema:
		w.WriteHeader(http.StatusForbidden)
	case isNamespace:
		encode(w, map[string]any{"kind": "Namespace", "apiVersion": "v1", "metadata": map[string]any{"name": "kube-system", "uid": uid}})
	case query.Get("sendInitialEvents") != "": // Of client-go's own informers.
		w.WriteHeader(http.StatusUnprocessableEntity)
	case isWatch:
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		s.list(w, path, isMetadata)
	}
}

func (s *Server) list(w http.ResponseWriter, path string, metadata bool) {
	gv, item := s.kindOf(path)
	if metadata {
		gv, item = "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	encode(w, map[string]any{
		"kind": item + "List", "apiVersion": gv, "metadata": map[string]any{"resourceVersion": "5"},
		"items": []any{map[string]any{
			"kind": item, "apiVersion": gv,
			"metadata": map[string]any{"namespace": "ns", "name": "a", "uid": "1", "resourceVersion": "4", "labels": map[string]any{"x": "1"}},
		}},
	})
}

// kindOf returns apiVersion and kind of what a path has. What is no path of a list, as that of a
// POST, has none.
func (s *Server) kindOf(path string) (apiVersion, kind string) {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	resource := schema.GroupVersionResource{Resource: segments[len(segments)-1]}
	switch {
	case segments[0] == "api" && len(segments) > 1:
		resource.Version = segments[1]
	case len(segments) > 2:
		resource.Group, resource.Version = segments[1], segments[2]
	}
	return resource.GroupVersion().String(), s.kinds[resource]
}

func encode(w http.ResponseWriter, answer any) {
	_ = json.NewEncoder(w).Encode(answer) // The client may have gone.
}
