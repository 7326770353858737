package controllerruntime

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/warmwatch/warmwatch"
)

// A Manager is a manager with its caches in a file. NewManager makes it.
type Manager struct {
	ctrl.Manager

	opened *warmwatch.Cache
	grace  time.Duration // As Options.GracefulShutdownTimeout.
}

// defaultGrace is that of controller-runtime (pkg/manager, defaultGracefulShutdownPeriod).
const defaultGrace = 30 * time.Second

// NewManager is [ctrl.NewManager] for a manager with its caches in the file at path. It opens the file with opening,
// see [warmwatch.Open], and uses a copy of config and options. If another process holds the file, it waits for up to
// LockTimeout, and no signal to the program ends that. The default Logger of opening is the manager's: options.Logger,
// or else controller-runtime's.
//
// Start closes the file when everything has stopped. Close a Manager that is not started. Options.Cache.NewInformer
// must be nil.
func NewManager(config *rest.Config, options ctrl.Options, path string, opening warmwatch.Options) (*Manager, error) {
	if config == nil {
		return nil, errors.New("warmwatch: a config is required")
	}
	if options.Cache.NewInformer != nil {
		return nil, errors.New("warmwatch: options.Cache.NewInformer is set: NewManager sets it itself")
	}
	if opening.Logger == nil {
		logger := options.Logger
		if logger.GetSink() == nil {
			logger = ctrl.Log
		}
		logger = logger.WithName("warmwatch")
		opening.Logger = &logger
	}
	opened, err := warmwatch.Open(context.Background(), path, opening)
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Wrap(opened.WrapTransport)
	options.Cache.NewInformer = opened.NewInformer
	options.NewCache = promptly(options.NewCache, opened)
	m, err := ctrl.NewManager(config, options)
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	grace := defaultGrace
	if options.GracefulShutdownTimeout != nil {
		grace = *options.GracefulShutdownTimeout
	}
	return &Manager{Manager: m, opened: opened, grace: grace}, nil
}

// Start is [ctrl.Manager]'s Start, and closes the file when everything has stopped. It leaves the file open, and
// returns at once as ctrl.Manager's does, if something still runs, if the last of it stopped in the last tenth of
// GracefulShutdownTimeout, if that is 0, or if the lease is lost. Then reconciles that still run can read the cache,
// and the end of the process costs as much as a crash. A program that goes on calls Close when they have returned. A
// second Start returns an error, and the Manager goes on.
func (m *Manager) Start(ctx context.Context) error {
	var began atomic.Pointer[time.Time]
	defer context.AfterFunc(ctx, func() { began.Store(new(time.Now())) })()
	if err := m.Manager.Start(ctx); err != nil {
		return err
	}
	var took time.Duration
	if at := began.Load(); at != nil {
		took = time.Since(*at)
	}
	if !allStopped(took, m.grace) {
		return nil
	}
	return m.Close()
}

// allStopped reports whether all that a manager runs has stopped, when its Start returns nil so long after it was told
// to stop. Once the grace is over, Start returns nil as well if the grace is 0, or was set to 0 because the lease was
// lost (engageStopProcedure in pkg/manager/internal.go). The manager's clock may have begun a moment earlier than ours.
func allStopped(took, grace time.Duration) bool { return grace < 0 || took < grace-grace/10 }

// Close closes the file if the Manager is not started, or Start has returned without closing it; see
// [warmwatch.Cache.Close]. Further calls return the same result.
func (m *Manager) Close() error { return m.opened.Close() }

// Opened returns the Cache of the manager's informers, for its Status, or for more informers.
func (m *Manager) Opened() *warmwatch.Cache { return m.opened }
