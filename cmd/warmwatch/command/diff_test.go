package command

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// A listServer answers lists of metadata.
type listServer struct {
	*httptest.Server
	mu       sync.Mutex
	versions map[string]map[string]string // uid@resourceVersion by name, by path.
	requests []string
	onList   func() // Called before each list.
}

func newListServer(t *testing.T) (s *listServer, kubeconfig string) {
	t.Helper()
	s = &listServer{versions: map[string]map[string]string{
		"/api/v1/namespaces/ns/pods":      {"a": "uid-1@1", "b": "uid-2@4"},
		"/api/v1/secrets":                 {"token": "uid-1@1"},
		"/apis/example.com/v1/widgets":    {"w": "uid-1@1"},
		"/api/v1/namespaces/kube-system/": {},
	}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	config := api.NewConfig()
	config.Clusters["c"] = &api.Cluster{Server: s.URL}
	config.Contexts["c"] = &api.Context{Cluster: "c"}
	config.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return s, kubeconfig
}

func (s *listServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	meta := map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{"name": "kube-system", "uid": "cluster-2"}}
	if r.URL.Path == "/api/v1/namespaces/kube-system" {
		_ = json.NewEncoder(w).Encode(meta)
		return
	}
	s.requests = append(s.requests, r.URL.Path+" "+r.URL.Query().Get("labelSelector"))
	if s.onList != nil {
		s.onList()
	}
	objects, known := s.versions[r.URL.Path]
	if !known {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	items := []any{}
	for name, version := range objects {
		uid, rv, _ := strings.Cut(version, "@")
		items = append(items, map[string]any{
			"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
			"metadata": map[string]any{"namespace": "ns", "name": name, "uid": uid, "resourceVersion": rv},
		})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{"resourceVersion": "9"}, "items": items,
	})
}

func TestDiff(t *testing.T) {
	defer func(before time.Duration) { checkAgain = before }(checkAgain)
	checkAgain = time.Millisecond
	path := build(t)
	server, kubeconfig := newListServer(t)
	diff := func(code int, part string, args ...string) string {
		t.Helper()
		return expect(t, code, part, append([]string{"diff", path, "--kubeconfig", kubeconfig}, args...)...)
	}
	if out := diff(exitFine, "Note: the file is of the cluster cluster-1, but the API server is of cluster-2"); out != "" {
		t.Errorf("differences:\n%s", out)
	}
	if got, want := strings.Join(server.requests, "\n"), "/api/v1/namespaces/ns/pods app=web\n/api/v1/secrets \n/apis/example.com/v1/widgets "; got != want {
		t.Errorf("it asked for\n%s\nwant\n%s", got, want)
	}

	server.versions["/api/v1/namespaces/ns/pods"] = map[string]string{"b": "uid-2@7", "d": "uid-4@6"}
	server.versions["/apis/example.com/v1/widgets"]["w"] = "uid-2@1"
	expectGolden(t, "diff", path, diff(exitFindings, "4 differences"))
	expectGolden(t, "diff-pods", path, diff(exitFindings, "3 differences", "pods", "--copy", "-o", "json"))
	diff(exitFine, "", "secrets")

	// A difference that does not last is none.
	lists := 0
	server.onList = func() {
		if lists++; lists == 2 {
			server.versions["/api/v1/namespaces/ns/pods"] = map[string]string{"a": "uid-1@1", "b": "uid-2@4", "e": "uid-5@8"}
		}
	}
	if out := diff(exitFine, "", "pods"); out != "" || lists != 2 {
		t.Errorf("%d lists, and\n%s", lists, out)
	}

	delete(server.versions, "/api/v1/secrets")
	diff(exitServer, "list "+secretsInformer, "secrets")
	server.Close()
	diff(exitServer, "list "+secretsInformer, "secrets")
	expect(t, exitServer, "", "diff", path, "--kubeconfig", filepath.Join(t.TempDir(), "missing"))
	expect(t, exitUnreadable, "", "diff", kubeconfig, "--kubeconfig", kubeconfig)
}
