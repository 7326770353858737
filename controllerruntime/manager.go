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

// A Manager is a manager whose caches are kept in a file. NewManager makes it.
type Manager struct {
	ctrl.Manager

	opened *warmwatch.Cache
	grace  time.Duration // As Options.GracefulShutdownTimeout.
}

// defaultGrace is that of controller-runtime (pkg/manager, defaultGracefulShutdownPeriod).
const defaultGrace = 30 * time.Second

// NewManager is [ctrl.NewManager] for a manager whose caches are kept in the file at path. It opens
// the file with opening, see [warmwatch.Open], and uses a copy of config and options. Where another process holds the
// file, it waits for up to LockTimeout, and no signal to the program ends that.
// Where opening has no Logger, it is the manager's: options.Logger, or else controller-runtime's.
//
// Start closes the file when all has stopped; a Manager that is not started must be closed.
// Options.Cache.NewInformer must be nil.
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

// Start is that of [ctrl.Manager], and closes the file when all has stopped. Where that has not, or only in the last
// tenth of GracefulShutdownTimeout, or the lease is lost, it returns at once, as ctrl.Manager's does: reconciles that
// still run find what they read, and the end of the process, which is to come, costs what a crash does. A program that
// goes on calls Close when they have returned; so does one whose GracefulShutdownTimeout is 0, because nobody knows then whether all has stopped.
// A Manager that is started again returns an error, and goes on with what it does.
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

// Close closes the file of a Manager that is not started, or whose Start has returned without closing it; see
// [warmwatch.Cache.Close]. After that it does nothing but return what closing has returned.
func (m *Manager) Close() error { return m.opened.Close() }

// Opened returns the Cache whose informers the manager has, for its Status, or more
// informers.
func (m *Manager) Opened() *warmwatch.Cache { return m.opened }
