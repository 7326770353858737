package controlplane

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// ErrNoBinaries means that kube-apiserver or etcd has not been built.
var ErrNoBinaries = errors.New("no control plane binaries; build them with `make controlplane`")

// Options configures Start. The zero value is valid.
type Options struct {
	BinDir         string        // Holds kube-apiserver and etcd. Default: bin/ of this repository, looked for from the working directory upwards.
	Dir            string        // Holds data, credentials and logs. Default: a temporary directory, which Stop removes.
	APIServerFlags []string      // Appended to the server's flags; a repeated flag wins.
	EtcdFlags      []string      // Likewise for etcd.
	StartTimeout   time.Duration // For each start of a server. Default 60s.
}

func (o Options) withDefaults() (Options, error) {
	if o.BinDir == "" {
		o.BinDir = findBinDir()
	}
	for _, name := range []string{"kube-apiserver", "etcd"} {
		if _, err := os.Stat(filepath.Join(o.BinDir, name)); err != nil {
			return o, fmt.Errorf("%w (%w)", ErrNoBinaries, err)
		}
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = time.Minute
	}
	return o, nil
}

// findBinDir looks for bin/kube-apiserver here and in the directories above.
func findBinDir() string {
	dir, err := os.Getwd()
	if err != nil {
		return "bin"
	}
	for {
		candidate := filepath.Join(dir, "bin")
		if _, err := os.Stat(filepath.Join(candidate, "kube-apiserver")); err == nil {
			return candidate
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "bin"
		}
		dir = parent
	}
}

// ControlPlane is a running kube-apiserver with its etcd. Its methods are not
// safe for concurrent use, except Config.
type ControlPlane struct {
	options   Options
	dir       string
	ownsDir   bool
	apiServer *apiServer
	etcd      *etcdServer
}

// Start returns once the API server is ready. The caller calls Stop.
func Start(ctx context.Context, o Options) (*ControlPlane, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	// A port that was free may be taken when the server wants it.
	for attempt := 1; ; attempt++ {
		cp, err := start(ctx, o)
		if err == nil || attempt == 3 || !strings.Contains(err.Error(), "address already in use") {
			return cp, err
		}
	}
}

func start(ctx context.Context, o Options) (*ControlPlane, error) {
	cp := &ControlPlane{options: o, dir: o.Dir}
	if cp.dir == "" {
		dir, err := os.MkdirTemp("", "controlplane-")
		if err != nil {
			return nil, err
		}
		cp.dir, cp.ownsDir = dir, true
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, errors.Join(err, cp.Stop())
	}
	cp.etcd = &etcdServer{
		name:    crand.Text(),
		path:    filepath.Join(o.BinDir, "etcd"),
		dir:     cp.dir,
		url:     "http://127.0.0.1:" + strconv.Itoa(ports[0]),
		peerURL: "http://127.0.0.1:" + strconv.Itoa(ports[1]),
		flags:   o.EtcdFlags,
	}
	cp.apiServer = &apiServer{
		path:    filepath.Join(o.BinDir, "kube-apiserver"),
		dir:     cp.dir,
		port:    ports[2],
		etcdURL: cp.etcd.url,
		flags:   o.APIServerFlags,
	}
	if err := cp.apiServer.writeCredentials(); err != nil {
		return nil, errors.Join(err, cp.Stop())
	}
	if err := cp.startBoth(ctx); err != nil {
		return nil, errors.Join(err, cp.Stop())
	}
	return cp, nil
}

// freePorts takes ports below the range that the kernel gives to outgoing
// connections, so that a stopped server finds its port free when it returns.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range 1000 {
		listener, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(20000+rand.IntN(12000)))
		if err != nil {
			continue
		}
		defer listener.Close() // Not before all are chosen, lest one is chosen twice.
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
		if len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free ports between 20000 and 32000")
}

// Config returns a configuration that may do anything, at any rate. The caller
// may change it.
func (cp *ControlPlane) Config() *rest.Config { return cp.apiServer.config() }

// Kubeconfig is a file that says the same as Config, but for the rate, to another
// process.
func (cp *ControlPlane) Kubeconfig() string { return cp.apiServer.file("kubeconfig") }

// Dir is where data, credentials and the servers' logs are.
func (cp *ControlPlane) Dir() string { return cp.dir }

// APIServerPID and EtcdPID are 0 while the process is not running.
func (cp *ControlPlane) APIServerPID() int { return cp.apiServer.proc.pid() }

// EtcdPID is the process id of etcd.
func (cp *ControlPlane) EtcdPID() int { return cp.etcd.proc.pid() }

// Stop ends both servers and removes the directory, if Start made it. It is
// idempotent.
func (cp *ControlPlane) Stop() error {
	var errs []error
	if cp.apiServer != nil {
		errs = append(errs, cp.apiServer.stop())
	}
	if cp.etcd != nil {
		errs = append(errs, cp.etcd.stop())
	}
	if cp.ownsDir {
		errs = append(errs, os.RemoveAll(cp.dir))
	}
	return errors.Join(errs...)
}

// StopAPIServer ends the API server; etcd keeps running. Connections to its port
// are refused from now on.
func (cp *ControlPlane) StopAPIServer() error { return cp.apiServer.stop() }

// StartAPIServer runs a new API server process on the same port, with the same
// credentials and data, and returns once it is ready. It has no history: every
// resourceVersion from before gets 410 Gone.
func (cp *ControlPlane) StartAPIServer(ctx context.Context) error {
	if cp.apiServer.proc != nil {
		return errors.New("the API server is running")
	}
	ctx, cancel := context.WithTimeout(ctx, cp.options.StartTimeout)
	defer cancel()
	return cp.apiServer.start(ctx)
}

// RestartAPIServer is StopAPIServer and StartAPIServer.
func (cp *ControlPlane) RestartAPIServer(ctx context.Context) error {
	if err := cp.StopAPIServer(); err != nil {
		return err
	}
	return cp.StartAPIServer(ctx)
}

// CollectGarbage has the API server collect its garbage, and returns when that is
// done. With a large heap it takes seconds of processor time, which a measurement
// may want to have behind it.
func (cp *ControlPlane) CollectGarbage(ctx context.Context) error {
	return cp.apiServer.get(ctx, "/debug/pprof/heap?gc=1", time.Minute)
}

// CompactEtcd drops etcd's history up to its current revision. A running API
// server still holds what is in its watch cache.
func (cp *ControlPlane) CompactEtcd(ctx context.Context) error { return cp.etcd.compact(ctx) }

// SnapshotEtcd keeps a copy of etcd's data as it is now, with all writes that were answered.
func (cp *ControlPlane) SnapshotEtcd() error {
	return cp.etcd.proc.whileSuspended(cp.etcd.saveSnapshot)
}

// RestoreEtcd puts the copy of SnapshotEtcd back, as a careless administrator
// does: revisions are rewound, and will be used again for other content. A
// client may then hold a resourceVersion from the future.
func (cp *ControlPlane) RestoreEtcd(ctx context.Context) error {
	if err := errors.Join(cp.apiServer.stop(), cp.etcd.stop()); err != nil {
		return err
	}
	if err := cp.etcd.loadSnapshot(); err != nil {
		return err
	}
	return cp.startBoth(ctx)
}

// RestoreEtcdBumped puts the copy back as it should be done: revisions go on behind
// those that were lost, and whoever has an older one gets 410 Gone.
func (cp *ControlPlane) RestoreEtcdBumped(ctx context.Context) error {
	last, err := cp.etcd.revision(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(cp.apiServer.stop(), cp.etcd.stop()); err != nil {
		return err
	}
	if err := cp.etcd.loadSnapshot(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cp.options.StartTimeout)
	defer cancel()
	if err := cp.etcd.start(ctx); err != nil {
		return err
	}
	if err := cp.etcd.bump(ctx, last+bumpRevisions); err != nil {
		return err
	}
	if err := cp.etcd.compact(ctx); err != nil {
		return err
	}
	return cp.apiServer.start(ctx)
}

// bumpRevisions lie between the last revision that a client may have seen and the
// first after a restore.
const bumpRevisions = 100

func (cp *ControlPlane) startBoth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cp.options.StartTimeout)
	defer cancel()
	if err := cp.etcd.start(ctx); err != nil {
		return err
	}
	return cp.apiServer.start(ctx)
}
