// Package meter counts what a client asks of an API server, and what it gets:
// requests by kind, and bytes on the wire.
package meter

import (
	"context"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

// DialFunc is the type of rest.Config.Dial.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Meter counts for all the configurations it was attached to. The zero value is
// ready for use. All methods are safe for concurrent use.
type Meter struct {
	received, sent atomic.Int64

	mu       sync.Mutex
	requests map[string]int
}

// Attach returns a copy of cfg whose connections and requests are counted. It
// dials as cfg does. Bytes are those of the TCP streams, TLS included.
func (m *Meter) Attach(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	dial := DialFunc(cfg.Dial)
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &countedConn{Conn: conn, meter: m}, nil
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			m.count(Kind(request))
			return next.RoundTrip(request)
		})
	})
	return cfg
}

// BytesReceived counts since the first Attach.
func (m *Meter) BytesReceived() int64 { return m.received.Load() }

// BytesSent counts since the first Attach.
func (m *Meter) BytesSent() int64 { return m.sent.Load() }

// Requests returns how many requests of each Kind were made, failed ones too.
func (m *Meter) Requests() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.requests)
}

func (m *Meter) count(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.requests == nil {
		m.requests = map[string]int{}
	}
	m.requests[kind]++
}

// Kind names a request as the API server's metrics do: list, watch, get, create,
// update, patch, delete. A watch that asks for the initial state as well is a
// "watchlist".
func Kind(request *http.Request) string {
	query := request.URL.Query()
	switch {
	case request.Method != http.MethodGet:
		return writeKind(request.Method)
	case query.Get("watch") != "" && query.Get("sendInitialEvents") == "true":
		return "watchlist"
	case query.Get("watch") != "":
		return "watch"
	case isCollection(request.URL.Path):
		return "list"
	}
	return "get"
}

func writeKind(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	}
	return strings.ToLower(method)
}

// isCollection tells /api/v1/pods and /apis/apps/v1/namespaces/x/deployments from
// the paths of single objects: the latter have one more segment.
func isCollection(path string) bool {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(segments) > 2 && segments[0] == "api":
		segments = segments[2:]
	case len(segments) > 3 && segments[0] == "apis":
		segments = segments[3:]
	default:
		return false
	}
	if len(segments) > 2 && segments[0] == "namespaces" {
		segments = segments[2:]
	}
	return len(segments) == 1
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

type countedConn struct {
	net.Conn
	meter *Meter
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.meter.received.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.meter.sent.Add(int64(n))
	return n, err
}
