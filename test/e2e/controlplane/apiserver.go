package controlplane

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// apiServer is kube-apiserver with one port, one set of certificates and one
// token, whatever process runs it.
type apiServer struct {
	path    string
	dir     string // Holds the credentials and the log.
	port    int
	etcdURL string
	flags   []string
	token   string
	caData  []byte
	proc    *process
}

func (a *apiServer) file(name string) string { return filepath.Join(a.dir, name) }

// writeCredentials makes what the server serves with and whom it believes.
func (a *apiServer) writeCredentials() error {
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, []string{"localhost"})
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	serviceAccountKey, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return fmt.Errorf("service account key: %w", err)
	}
	a.caData = certificate // The file holds the certificate and its CA.
	a.token = rand.Text()
	for name, content := range map[string][]byte{
		"tls.crt":   certificate,
		"tls.key":   key,
		"sa.key":    serviceAccountKey,
		"token.csv": []byte(a.token + ",admin,admin,system:masters\n"),
	} {
		if err := os.WriteFile(a.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"local": {Server: a.url(), CertificateAuthorityData: a.caData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"local": {Token: a.token}},
		Contexts:       map[string]*clientcmdapi.Context{"local": {Cluster: "local", AuthInfo: "local"}},
		CurrentContext: "local",
	}, a.file("kubeconfig"))
}

func (a *apiServer) args() []string {
	args := []string{
		"--etcd-servers=" + a.etcdURL,
		"--etcd-compaction-interval=0", // History goes when a test says so.
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(a.port),
		"--tls-cert-file=" + a.file("tls.crt"),
		"--tls-private-key-file=" + a.file("tls.key"),
		"--token-auth-file=" + a.file("token.csv"),
		"--anonymous-auth=false",
		"--authorization-mode=AlwaysAllow",
		"--service-account-issuer=https://127.0.0.1/",
		"--service-account-key-file=" + a.file("sa.key"),
		"--service-account-signing-key-file=" + a.file("sa.key"),
		"--service-cluster-ip-range=10.0.0.0/24",
		"--endpoint-reconciler-type=none",
		"--disable-admission-plugins=ServiceAccount",
		// What nobody uses here: to describe these groups is a third of a start.
		"--runtime-config=autoscaling/v1=false,autoscaling/v2=false,batch/v1=false,certificates.k8s.io/v1=false,resource.k8s.io/v1=false,events.k8s.io/v1=false,policy/v1=false",
		// Generated load is not to be queued.
		"--enable-priority-and-fairness=false",
		"--max-requests-inflight=0",
		"--max-mutating-requests-inflight=0",
	}
	args = slices.DeleteFunc(args, func(arg string) bool { // The server would add up the values of some flags.
		name, _, _ := strings.Cut(arg, "=")
		return slices.ContainsFunc(a.flags, func(flag string) bool { return strings.HasPrefix(flag, name+"=") })
	})
	return append(args, a.flags...)
}

func (a *apiServer) start(ctx context.Context) error {
	proc, err := startProcess(ctx, a.dir, a.path, a.args(), a.ready)
	if err != nil {
		return err
	}
	a.proc = proc
	return nil
}

func (a *apiServer) stop() error {
	err := a.proc.stop()
	a.proc = nil
	return err
}

// ready wants every start hook done, and the namespace that nearly every test
// uses; the server creates it shortly after it says that it is ready.
func (a *apiServer) ready(ctx context.Context) error {
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
		if err := a.get(ctx, path, 5*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// get asks for a page and wants status 200.
func (a *apiServer) get(ctx context.Context, pathAndQuery string, timeout time.Duration) error {
	client, err := rest.HTTPClientFor(a.config())
	if err != nil {
		return err
	}
	client.Timeout = timeout
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url()+pathAndQuery, nil)
	if err != nil {
		return err
	}
	_, err = roundTrip(client, request)
	return err
}

func (a *apiServer) url() string { return "https://127.0.0.1:" + strconv.Itoa(a.port) }

func (a *apiServer) config() *rest.Config {
	return &rest.Config{
		Host:            a.url(),
		BearerToken:     a.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: a.caData},
		QPS:             -1, // No limit.
	}
}
