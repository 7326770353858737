package link_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch/test/e2e/link"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func TestLinkGoesDownAndUpAtTheSameAddress(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	}))
	defer server.Close()
	cfg := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	l, err := link.To(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Down()
	client, err := rest.HTTPClientFor(l.Attach(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()

	get := func() error {
		response, err := client.Get(server.URL)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, err = io.ReadAll(response.Body)
		return err
	}
	if err := get(); err != nil {
		t.Fatalf("up: %v", err)
	}
	l.Down()
	if err := get(); err == nil {
		t.Fatal("a request went through a link that is down")
	}
	if err := l.Up(); err != nil {
		t.Fatal(err)
	}
	if err := get(); err != nil {
		t.Fatalf("up again: %v", err)
	}
	if err := l.CutAfter(10); err != nil {
		t.Fatal(err)
	}
	client.CloseIdleConnections()
	if err := get(); err == nil {
		t.Fatal("a request went through a link that cuts after 10 bytes")
	}
	if err := l.Heal(); err != nil {
		t.Fatal(err)
	}
	if err := get(); err != nil {
		t.Fatalf("healed: %v", err)
	}
	if err := l.Silence(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(10*time.Millisecond, l.Down)
	if err := get(); err == nil { // Nothing else ends it.
		t.Fatal("a request went through a link that is silent")
	}
	if err := errors.Join(l.Heal(), l.Up()); err != nil {
		t.Fatal(err)
	}
	if err := get(); err != nil {
		t.Fatalf("not cut any more: %v", err)
	}
}
