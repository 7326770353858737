// Package process has programs that use warmwatch, each for one life.
package process

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/cachefile"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
	"github.com/warmwatch/warmwatch/persist"
)

// ConfigMaps is what the informer of a Process lists.
var ConfigMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

// AddDurable registers a new recorder as a durable handler.
func AddDurable(t *testing.T, p *Process, name string) *recorder.Recorder {
	t.Helper()
	r := &recorder.Recorder{}
	if _, err := p.Informer.AddDurableEventHandler(name, r, warmwatch.DurableOptions{}); err != nil {
		t.Fatal(err)
	}
	return r
}

// Process is one life of a program that has a Cache with one informer.
type Process struct {
	T        *testing.T
	Path     string
	Cache    *warmwatch.Cache
	Informer *warmwatch.SharedIndexInformer
	End      func() // Of Run.
	Stopped  bool
	Damaged  bool // The file was, so that bbolt's checks may fail.
}

// Setup changes the options of a Process.
type Setup = func(*warmwatch.Options, *warmwatch.InformerOptions)

// Launch begins a life, which serves what the disk has at once. Call Run to run the informer.
func Launch(t *testing.T, path string, lw cache.ListerWatcher, change Setup, example ...runtime.Object) *Process {
	t.Helper()
	o, io := warmwatch.Options{ServeStaleAfter: -1}, warmwatch.InformerOptions{Resource: ConfigMaps}
	if change != nil {
		change(&o, &io)
	}
	example = append(example, &corev1.ConfigMap{})
	c, err := warmwatch.Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{T: t, Path: path, Cache: c}
	t.Cleanup(p.Stop)
	if p.Informer, err = c.NewSharedIndexInformer(lw, example[0], io); err != nil {
		t.Fatal(err)
	}
	return p
}

// Run runs the informer until Stop.
func (p *Process) Run() *Process {
	p.End = bubble.Start(p.T, p.Informer)
	return p
}

// Stop ends the life in order, and checks what it left.
func (p *Process) Stop() {
	p.T.Helper()
	if p.Stopped {
		return
	}
	p.Stopped = true
	if p.End != nil {
		p.End()
	}
	if err := p.Cache.Close(); err != nil && (!p.Damaged || !errors.Is(err, persist.ErrCorrupt)) {
		p.T.Errorf("close: %v", err)
	}
	if !p.Damaged && !p.Cache.Status().MemoryOnly {
		cachefile.Check(p.T, p.Path)
	}
}

// Crash copies the file as it is now, which is what a process that is killed
// now would leave, and returns the path of the copy.
func (p *Process) Crash() string {
	p.T.Helper()
	copied := filepath.Join(p.T.TempDir(), "cache.db")
	testsupport.CopyFile(p.T, p.Path, copied)
	cachefile.Check(p.T, copied)
	return copied
}

// ExpectVersions compares what the store has.
func (p *Process) ExpectVersions(want ...string) {
	p.T.Helper()
	if diff := cmp.Diff(want, source.Versions(p.Informer.GetStore().List())); diff != "" {
		p.T.Errorf("the store (-want +got):\n%s", diff)
	}
}

// ErrTransform is for transforms that refuse an object.
var ErrTransform = errors.New("cannot be transformed")

// LaunchTransforming begins a life with a transform, and runs it.
func LaunchTransforming(t *testing.T, path string, f *source.Source, transform cache.TransformFunc) *Process {
	t.Helper()
	p := Launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "1" })
	if err := p.Informer.SetTransform(transform); err != nil {
		t.Fatal(err)
	}
	p.Run()
	bubble.Settle()
	return p
}

// Filled begins a file: one life that has seen these objects and ended in
// order.
func Filled(t *testing.T, f *source.Source, change Setup) (path string) {
	t.Helper()
	path = testsupport.Path(t)
	Fill(t, path, f, change)
	return path
}

// Fill is Filled for a file of this path.
func Fill(t *testing.T, path string, f *source.Source, change Setup) {
	t.Helper()
	p := Launch(t, path, f, change).Run()
	bubble.Settle()
	ExpectStore(t, p.Informer, f)
	p.Stop()
	f.TakeRequests()
}

// ExpectRequests compares the requests since the last call.
func (p *Process) ExpectRequests(f *source.Source, want ...string) {
	p.T.Helper()
	if diff := cmp.Diff(want, f.TakeRequestsInOrder()); diff != "" {
		p.T.Errorf("unexpected requests (-want +got):\n%s", diff)
	}
}

// Remove removes a handler.
func Remove(t *testing.T, p *Process, registration cache.ResourceEventHandlerRegistration) {
	t.Helper()
	if err := p.Informer.RemoveEventHandler(registration); err != nil {
		t.Fatal(err)
	}
}

// IsCluster makes the API server tell this identity, or this error.
func IsCluster(id string, err error) Setup {
	return func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
		o.ClusterID = func(context.Context) (string, error) { return id, err }
	}
}

// AddBoth adds a plain and a durable handler.
func AddBoth(t *testing.T, p *Process) (plain, durable *recorder.Recorder) {
	t.Helper()
	plain, _ = recorder.Add(t, p.Informer)
	return plain, AddDurable(t, p, "d")
}

// ByContent gives the informer an index, content.
func ByContent(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
	o.Indexers = cache.Indexers{"content": source.ByContent}
}
