package meter_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch/test/e2e/meter"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func TestKind(t *testing.T) {
	for _, tc := range []struct{ method, target, want string }{
		{"GET", "/api/v1/pods?limit=1", "list"},
		{"GET", "/api/v1/pods?watch=true&resourceVersion=7", "watch"},
		{"GET", "/api/v1/pods?watch=1&sendInitialEvents=true", "watchlist"},
		{"GET", "/api/v1/namespaces", "list"},
		{"GET", "/api/v1/namespaces/kube-system", "get"},
		{"GET", "/api/v1/namespaces/x/pods", "list"},
		{"GET", "/api/v1/namespaces/x/pods/y", "get"},
		{"GET", "/api/v1/namespaces/x/pods/y/status", "get"},
		{"GET", "/apis/apps/v1/deployments", "list"},
		{"GET", "/apis/apps/v1/namespaces/x/deployments", "list"},
		{"GET", "/apis/apps/v1/namespaces/x/deployments/y", "get"},
		{"GET", "/version", "get"},
		{"POST", "/api/v1/namespaces/x/pods", "create"},
		{"PUT", "/api/v1/namespaces/x/pods/y", "update"},
		{"PATCH", "/api/v1/namespaces/x/pods/y", "patch"},
		{"DELETE", "/api/v1/namespaces/x/pods/y", "delete"},
	} {
		if got := meter.Kind(httptest.NewRequest(tc.method, tc.target, nil)); got != tc.want {
			t.Errorf("Kind(%s %s) = %q, want %q", tc.method, tc.target, got, tc.want)
		}
	}
}

func TestMeterCountsRequestsAndBytesOfTheStream(t *testing.T) {
	body := make([]byte, 10_000)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(body)
	}))
	defer server.Close()
	var m meter.Meter
	cfg := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	client, err := rest.HTTPClientFor(m.Attach(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	for range 3 {
		response, err := client.Get(server.URL + "/api/v1/pods")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	if diff := cmp.Diff(map[string]int{"list": 3}, m.Requests()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if got := m.BytesReceived(); got < 30_000 || got > 40_000 {
		t.Errorf("%d bytes received, want 30,000 and a handshake", got)
	}
	if got := m.BytesSent(); got == 0 || got > 10_000 {
		t.Errorf("%d bytes sent, want a handshake and three requests", got)
	}
}
