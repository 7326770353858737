package warmwatch

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

var (
	// ErrInUse says that an identity already has an informer in this Cache, or
	// a durable name a handler in this informer.
	ErrInUse = queue.ErrInUse

	// ErrClosed is returned by calls on a closed Cache.
	ErrClosed = persist.ErrClosed

	// ErrLocked is in Status().Err when another process holds the file.
	ErrLocked = persist.ErrLocked
)

// A SyncPolicy says when HasSynced turns true after a warm start.
type SyncPolicy string

const (
	// SyncFromDisk means as soon as the checkpoint is found valid and the objects
	// can be read, with or without an API server.
	SyncFromDisk SyncPolicy = "SyncFromDisk"
	// SyncFromServer means once the resumed watch has reached the resourceVersion
	// that the server had when it was asked (by an event, a bookmark, or 500 ms
	// of quiet after the watch opened), or the relist is done.
	SyncFromServer SyncPolicy = "SyncFromServer"
)

// Options configures [Open]. The zero value is valid.
type Options struct {
	// CommitInterval is the longest time a change stays in memory only.
	// Default 1s. A longer one spares the disk; what a crash loses the API
	// server sends again.
	CommitInterval time.Duration
	// DurableDelay is the same while a durable handler waits for the change.
	// Default 10ms.
	DurableDelay time.Duration
	// MemoryBudget is the bytes of decoded objects kept in memory, of all
	// informers together. Default 64 MiB; negative: all of them. While the
	// first handler is told of all objects, up to half of what is left of it, at
	// most 32 MiB, is room for garbage instead, so that the collector runs less often.
	MemoryBudget int64
	// MaxPendingBytes bounds what waits in memory to be written. Past it the
	// watch slows down. Default 16 MiB.
	MaxPendingBytes int64
	// MaxBacklogBytes bounds, for each informer, what waits in the file for
	// handlers that are behind. Past it the notifications of one object are folded
	// into one, with the first old object and the last new one. Each OnDelete stays, so
	// this is no bound for deletions. The order among objects then changes. Default
	// 256 MiB; negative: no bound.
	MaxBacklogBytes int64
	// MaxAge: a checkpoint is relisted, not resumed, if the server has not vouched
	// for it for so long, by an event, a bookmark or a list. Default 24h; negative:
	// however long. While a watch is open, bookmarks come about once a minute: so
	// it is how long a process may have been down, or disconnected. As often, the
	// contents of all objects are compared with the server's while the process runs,
	// because not every change of what an object reads like comes with an event.
	MaxAge time.Duration
	// ClusterID asks for the identity of the cluster behind the file, for
	// example [KubeSystemUID]. If it is not the one that the objects came from,
	// none of them is believed. It is asked before the first list or watch of
	// each informer. An error of the network is tried again. If the server refuses
	// to tell (401, 403, 404, 405), objects of a known cluster are compared with a
	// list, by content, and are of an unknown one from then on. Default: not asked.
	ClusterID func(context.Context) (string, error)
	// SyncPolicy defaults to SyncFromDisk.
	SyncPolicy SyncPolicy
	// LockTimeout is how long Open waits for a file that another process
	// holds, before it works from memory. Default 1s.
	LockTimeout time.Duration
	// Logger receives what an operator should know. Default klog's.
	Logger *klog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.MaxAge == 0 {
		o.MaxAge = 24 * time.Hour
	}
	switch o.SyncPolicy {
	case "":
		o.SyncPolicy = SyncFromDisk
	case SyncFromDisk, SyncFromServer:
	default:
		return o, fmt.Errorf("warmwatch: unknown SyncPolicy %q", o.SyncPolicy)
	}
	if o.Logger == nil {
		l := klog.Background()
		o.Logger = &l
	}
	return o, nil
}

// KubeSystemUID returns a function for Options.ClusterID: the UID of the
// namespace kube-system, which every cluster has and none shares.
func KubeSystemUID(client corev1.NamespacesGetter) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		ns, err := client.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return string(ns.UID), nil
	}
}

// A Cache is one file, and the informers that live in it. It is safe for
// concurrent use.
type Cache struct {
	opts    Options
	db      *persist.DB
	objects *indexer.Objects

	mu        sync.Mutex
	informers map[string]*SharedIndexInformer // By space; nil while one is being made.
	closed    bool
}

// Open opens the file at path, or begins one (mode 0600, in a directory created
// with mode 0700: it can hold Secrets). A path that is a symbolic link stands for the
// file that it leads to, which need not be there yet.
//
// It fails for a path that cannot be meant (empty, or not a regular file) and
// for options that make no sense. All else that may be wrong with a file does
// not stop the program: one that is corrupt, or of an unknown format, is set
// aside as path.corrupt-<time>, see Status().SetAside, and replaced by a new one with
// all that can still be read; one that another process holds, or that cannot be
// written, is left alone, and the Cache works from memory. Status().Err says so, as
// does the log. That is tried again, at least every minute, as it is where there is no
// room for a new file. Once the file can be had, it is set aside as
// path.replaced-<time>, because the Cache has gone on without it.
//
// A file with nothing in it is begun in place. So path may be a mount point, but then a
// file that gets damaged cannot be replaced: mount the directory that it is in instead.
func Open(path string, o Options) (*Cache, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	db, err := persist.Open(path, persist.Options{
		CommitInterval:  o.CommitInterval,
		DurableDelay:    o.DurableDelay,
		MaxPendingBytes: o.MaxPendingBytes,
		LockTimeout:     o.LockTimeout,
		Logger:          o.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("warmwatch: open: %w", err)
	}
	return &Cache{
		opts:      o,
		db:        db,
		objects:   indexer.NewObjects(o.MemoryBudget),
		informers: map[string]*SharedIndexInformer{},
	}, nil
}

// Close stops the informers that still run, without waiting for handlers, and
// writes and closes the file. After nil, all that was applied and acknowledged
// is in the file; after an error, what is missing the API server will send
// again. A Cache whose file was lost in use, so that it works from memory, returns why;
// one that never had a file returns nil, because Status().Err has said so since Open.
// Further calls wait for the first and return what it does. The stores cannot be read
// afterwards.
//
// To have handlers finish what they were told, stop the informers first and
// wait for their Run to return.
func (c *Cache) Close() error {
	c.mu.Lock()
	c.closed = true
	informers := c.informersLocked()
	c.mu.Unlock()
	for _, s := range informers {
		s.detach()
	}
	if err := c.db.Close(); err != nil {
		return fmt.Errorf("warmwatch: close: %w", err)
	}
	return nil
}

// claim keeps the space of s free for it.
func (c *Cache) claim(s *SharedIndexInformer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("warmwatch: new informer: %w", ErrClosed)
	}
	if _, taken := c.informers[s.space]; taken {
		return fmt.Errorf("warmwatch: %w: %s has an informer in this cache; set InformerOptions.Name to have another", ErrInUse, s.identity)
	}
	c.informers[s.space] = nil
	return nil
}

// admit makes s, which is complete now, the informer of its space.
func (c *Cache) admit(s *SharedIndexInformer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.informers[s.space] = s
	return nil
}

func (c *Cache) informersLocked() []*SharedIndexInformer {
	informers := make([]*SharedIndexInformer, 0, len(c.informers))
	for _, s := range c.informers {
		if s != nil {
			informers = append(informers, s)
		}
	}
	return informers
}

func (c *Cache) release(s *SharedIndexInformer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.informers[s.space]; i == nil || i == s {
		delete(c.informers, s.space)
	}
}

// A SetAside is a file that was found damaged, or of an unknown format, or that the Cache
// could not have at first and has gone on without, and was replaced.
type SetAside struct {
	// Path that the file has now.
	Path string
	// Time when it was set aside.
	Time time.Time
	// Cause says what was wrong with it, or why it could not be used.
	Cause string
}

// Status is the state of a [Cache]. As JSON it has the names of the fields, and errors
// as strings.
type Status struct {
	// Path of the file, as it was given to Open.
	Path string
	// MemoryOnly: there is no file, see Err.
	MemoryOnly bool
	// SetAside are the files that were set aside since Open, and are still there.
	SetAside []SetAside
	// Informers by identity.
	Informers map[string]InformerStatus
	// Err says why persistence is degraded. The informers still work.
	Err error
}

// Status returns the present state.
func (c *Cache) Status() Status {
	c.mu.Lock()
	informers := c.informersLocked()
	c.mu.Unlock()
	st := Status{Path: c.db.Path(), MemoryOnly: c.db.MemoryOnly(), Informers: map[string]InformerStatus{}, Err: c.db.Err()}
	for _, a := range c.db.SetAside() {
		st.SetAside = append(st.SetAside, SetAside(a))
	}
	for _, s := range informers {
		st.Informers[s.identity.String()] = s.Status()
	}
	return st
}

var errRequired = errors.New("is required")

// isNil also finds a nil pointer in an interface.
func isNil(v any) bool {
	return v == nil || (reflect.ValueOf(v).Kind() == reflect.Pointer && reflect.ValueOf(v).IsNil())
}
