package corrupt

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/go-logr/logr"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport/apiserver"
)

var resources = map[kind]schema.GroupVersionResource{
	typed:   corev1.SchemeGroupVersion.WithResource("configmaps"),
	untyped: {Group: "example.com", Version: "v1", Resource: "widgets"},
}

// The indices: an object has one color, and several of its letters.
const (
	byColor  = "color"
	byLetter = "letter"
)

func colorOf(obj any) string {
	switch o := obj.(type) {
	case *corev1.ConfigMap:
		return o.Data["color"]
	case *unstructured.Unstructured:
		color, _, _ := unstructured.NestedString(o.Object, "spec", "color") // None is no color.
		return color
	}
	return ""
}

var indexers = cache.Indexers{
	byColor: func(obj any) ([]string, error) { return []string{colorOf(obj)}, nil },
	byLetter: func(obj any) ([]string, error) {
		key, err := cache.MetaNamespaceKeyFunc(obj)
		if err != nil {
			return nil, err
		}
		return []string{key[len(key)-1:], colorOf(obj) + key[len(key)-2:len(key)-1]}, nil
	},
}

// life is one life of a program: a Cache with an informer of each kind.
type life struct {
	path      string
	cache     *warmwatch.Cache
	informers map[kind]*warmwatch.SharedIndexInformer
	durable   map[kind]map[string]*belief
	handles   map[kind]map[string]cache.ResourceEventHandlerRegistration
	plain     map[kind]*belief
	ctx       context.Context
	cancel    context.CancelFunc
	running   sync.WaitGroup
	atSync    [][]problem // What each informer has served when it had synced.
}

// begin opens the file. memoryBudget is warmwatch.Options.MemoryBudget.
func begin(path string, memoryBudget int64, servers map[kind]*apiserver.Server) (*life, error) {
	logger := logr.Discard()
	c, err := warmwatch.Open(context.Background(), path, warmwatch.Options{Logger: &logger, MemoryBudget: memoryBudget})
	if err != nil {
		return nil, err
	}
	l := &life{
		path: path, cache: c,
		informers: map[kind]*warmwatch.SharedIndexInformer{},
		durable:   map[kind]map[string]*belief{},
		handles:   map[kind]map[string]cache.ResourceEventHandlerRegistration{},
		plain:     map[kind]*belief{},
	}
	l.ctx, l.cancel = context.WithCancel(klog.NewContext(context.Background(), logger))
	for _, k := range kinds {
		l.durable[k], l.handles[k] = map[string]*belief{}, map[string]cache.ResourceEventHandlerRegistration{}
		l.informers[k], err = c.NewSharedIndexInformer(servers[k], k.example(), warmwatch.InformerOptions{
			Resource: resources[k], Indexers: indexers, IndexVersion: "1",
		})
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// addDurable adds a handler that believes what it got in former processes. Where tells, the informer may ask for
// that.
func (l *life) addDurable(k kind, name string, known map[string]int, tells bool) (err error) {
	b, o := newBelief(known), warmwatch.DurableOptions{}
	if tells {
		o.Known = b.keys
	}
	l.durable[k][name] = b
	l.handles[k][name], err = l.informers[k].AddDurableEventHandler(name, b, o)
	return err
}

func (l *life) addPlain(k kind) error {
	l.plain[k] = newBelief(nil)
	_, err := l.informers[k].AddEventHandler(l.plain[k])
	return err
}

func (l *life) remove(k kind, name string) error {
	return l.informers[k].RemoveEventHandler(l.handles[k][name])
}

// run runs the informers. A reader of each begins as soon as it has synced.
func (l *life) run(servers map[kind]*apiserver.Server, since map[kind]int) {
	l.atSync = make([][]problem, len(kinds))
	for i, k := range kinds {
		l.running.Go(func() { l.informers[k].RunWithContext(l.ctx) })
		l.running.Go(func() {
			select {
			case <-l.informers[k].HasSyncedChecker().Done():
				l.atSync[i] = l.checkReads(k, servers[k], since[k])
			case <-l.ctx.Done():
			}
		})
	}
}

// end ends it in order. Only then atSync is complete.
func (l *life) end() error {
	l.cancel()
	l.running.Wait()
	return l.cache.Close()
}

// freeze: from now on nothing of this life counts.
func (l *life) freeze() {
	for k, handlers := range l.durable {
		for _, b := range handlers {
			b.freeze()
		}
		l.plain[k].freeze()
	}
}

// setAside lists the files that were.
func (l *life) setAside() (names []string) {
	all, err := filepath.Glob(l.path + ".corrupt-*")
	if err != nil {
		panic(err) // Of the pattern only.
	}
	for _, name := range all {
		names = append(names, strings.TrimPrefix(name, l.path))
	}
	return names
}

// readOnly reports whether the file was found damaged in use.
func (l *life) readOnly() bool {
	return slices.ContainsFunc(l.cache.Status().Problems, func(p warmwatch.Problem) bool { return p.Code == warmwatch.CodeFileDamaged })
}

// status is what there is to say about how it went.
func (l *life) status() string {
	var s []string
	all := l.cache.Status()
	for _, k := range kinds {
		st := l.informers[k].Status()
		s = append(s, fmt.Sprintf("%s from %s, %d resumes, %d relists, %s (%s %s) %v",
			k, st.StartedFrom, st.Resumes, st.Relists, st.Phase, st.Cause, st.Reason, st.Err))
	}
	return fmt.Sprintf("%s; memory only %t; aside %v", strings.Join(s, "; "), all.MemoryOnly, l.setAside())
}
