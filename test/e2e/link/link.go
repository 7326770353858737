// Package link is the network between a client and the API server, with faults:
// down, slow, silent. It is a TCP proxy (toxiproxy) on loopback.
package link

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"k8s.io/client-go/rest"
)

// Link forwards connections to one address. All methods are safe for concurrent
// use.
type Link struct {
	proxy *toxiproxy.Proxy

	mu     sync.Mutex
	toxics map[string]bool // Names of the faults in force, besides being down.
}

// New returns a link to host:port that is up. The caller calls Down at the end.
func New(upstream string) (*Link, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	l := &Link{
		proxy:  toxiproxy.NewProxy(server, "link", "127.0.0.1:0", upstream),
		toxics: map[string]bool{},
	}
	if err := l.Up(); err != nil {
		return nil, err
	}
	return l, nil
}

// To returns a link to the API server of cfg, or to the HTTP proxy through which
// cfg reaches it.
func To(cfg *rest.Config) (*Link, error) {
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	proxyFor := http.ProxyFromEnvironment
	if cfg.Proxy != nil {
		proxyFor = cfg.Proxy
	}
	proxy, err := proxyFor(&http.Request{URL: server})
	if err != nil {
		return nil, err
	}
	if proxy != nil {
		server = proxy
	}
	return New(hostPort(server))
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "socks5": "1080"}[u.Scheme]
	}
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// Addr is where the link listens. It stays the same over Down and Up.
func (l *Link) Addr() string {
	l.proxy.Lock()
	defer l.proxy.Unlock()
	return l.proxy.Listen
}

// Attach returns a copy of cfg that dials the link whatever host it wants. Host
// names in URLs and certificates stay those of the API server.
func (l *Link) Attach(cfg *rest.Config) *rest.Config { return Attach(cfg, l.Addr()) }

// Attach is Link.Attach for a link of another process.
func Attach(cfg *rest.Config, addr string) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	return cfg
}

// Down cuts all connections; new ones are refused.
func (l *Link) Down() { l.proxy.Stop() }

// Up accepts connections again.
func (l *Link) Up() error {
	if err := l.proxy.Start(); err != nil {
		return fmt.Errorf("link: %w", err)
	}
	return nil
}

// Bandwidth limits what the server sends, in kilobytes a second.
func (l *Link) Bandwidth(kilobytes int) error {
	return l.add("bandwidth", fmt.Sprintf(`{"rate":%d}`, kilobytes))
}

// Latency delays what the server sends, in milliseconds.
func (l *Link) Latency(milliseconds int) error {
	return l.add("latency", fmt.Sprintf(`{"latency":%d}`, milliseconds))
}

// Silence drops what the server sends, while the connections stay open.
func (l *Link) Silence() error { return l.add("timeout", `{"timeout":0}`) }

// CutAfter closes each connection once the server has sent so many bytes on it.
func (l *Link) CutAfter(sizeBytes int) error {
	return l.add("limit_data", fmt.Sprintf(`{"bytes":%d}`, sizeBytes))
}

// Heal ends all faults but Down.
func (l *Link) Heal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.toxics {
		if err := l.proxy.Toxics.RemoveToxic(context.Background(), name); err != nil {
			return fmt.Errorf("link: %w", err)
		}
		delete(l.toxics, name)
	}
	return nil
}

func (l *Link) add(kind, attributes string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	definition := fmt.Sprintf(`{"name":%q,"type":%q,"stream":"downstream","attributes":%s}`, kind, kind, attributes)
	if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(definition)); err != nil {
		return fmt.Errorf("link: %s: %w", kind, err)
	}
	l.toxics[kind] = true
	return nil
}
