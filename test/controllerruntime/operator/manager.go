package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/controllerruntime"
	"github.com/warmwatch/warmwatch/test/e2e/meter"
)

// managerCommand is the argument with which this program is the manager.
const managerCommand = "manager"

// life is what one life of the manager is started with.
type life struct {
	Kubeconfig string
	File       string // Empty: the stock caches.
	CgroupFile string // If set, of which the process makes itself a member before it begins.
	Kinds      []kind
}

// lived is what a life says of itself.
type lived struct {
	Running    time.Duration // Until each controller has looked at an object.
	Reconciled time.Duration // Until all objects were looked at.
	Bytes      int64         // Received.
	Requests   map[string]int
	CPU        time.Duration
}

// runManager is a life. It says what it was when all objects were looked at, and ends in order
// when its input ends.
func runManager(ctx context.Context, text string) error {
	begin := time.Now()
	var l life
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return err
	}
	if l.CgroupFile != "" {
		if err := os.WriteFile(l.CgroupFile, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
			return err
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", l.Kubeconfig)
	if err != nil {
		return err
	}
	var wire meter.Meter
	mgr, err := l.newManager(wire.Attach(config))
	if err != nil {
		return err
	}
	seen := &progress{begin: begin, missing: map[string]int{}, done: make(chan struct{})}
	for _, k := range l.Kinds {
		seen.missing[k.Kind], seen.total = k.Objects, seen.total+k.Objects
		if err := seen.add(mgr, k); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	select {
	case <-seen.done:
	case err := <-ended:
		return errors.Join(errors.New("the manager has ended"), err)
	}
	answer := lived{Running: seen.running, Reconciled: seen.reconciled, Bytes: wire.BytesReceived(), Requests: wire.Requests(), CPU: cpuTime()}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	cancel()
	return <-ended
}

func (l life) newManager(config *rest.Config) (ctrl.Manager, error) {
	options := ctrl.Options{Scheme: scheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}}
	if l.File == "" {
		return ctrl.NewManager(config, options)
	}
	return controllerruntime.NewManager(config, options, l.File, warmwatch.Options{})
}

// progress counts the objects that the controllers have looked at.
type progress struct {
	begin time.Time
	done  chan struct{}

	mu                  sync.Mutex
	missing             map[string]int // Objects, by kind.
	total, kindsRunning int
	running, reconciled time.Duration
}

// add adds a controller, which gets each object from the cache, and looks at those of the
// scenario for the first time.
func (p *progress) add(mgr ctrl.Manager, k kind) error {
	known := map[types.NamespacedName]bool{} // Of one worker.
	look := func(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
		object := k.empty()
		if err := mgr.GetCache().Get(ctx, request.NamespacedName, object); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		if request.Namespace == namespace && !known[request.NamespacedName] {
			known[request.NamespacedName] = true
			p.saw(k.Kind, len(known) == 1)
		}
		return ctrl.Result{}, nil
	}
	return ctrl.NewControllerManagedBy(mgr).Named(k.Kind).For(k.empty()).Complete(reconcile.Func(look))
}

func (p *progress) saw(kind string, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first {
		if p.kindsRunning++; p.kindsRunning == len(p.missing) {
			p.running = time.Since(p.begin)
		}
	}
	p.missing[kind]--
	if p.total--; p.total == 0 {
		p.reconciled = time.Since(p.begin)
		close(p.done)
	}
}

// empty returns an object of the kind: a typed one, if there is a type.
func (k kind) empty() client.Object {
	gvk := schema.FromAPIVersionAndKind(k.APIVersion, k.Kind)
	if object, err := scheme.Scheme.New(gvk); err == nil {
		return object.(client.Object)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u
}

func newClient(config *rest.Config) (client.Client, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	return client.New(config, client.Options{})
}

// cpuTime is that of this process.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(fmt.Sprintf("getrusage: %v", err))
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
