package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/test/e2e/link"
)

// soakEnv holds the soakConfig of a test binary that is to be the agent of
// TestLinks.
const soakEnv = "WARMWATCH_E2E_SOAK"

type soakConfig struct {
	Host, Token, Link string
	CAData            []byte
	Namespace         string
	Dir               string // Of the cache file and the journals.
	Life              int    // Plain handlers have a journal for each.
}

// soaked are the resources that an agent keeps.
var soaked = []schema.GroupVersionResource{configMaps, secrets, widgets}

// soakHandlers are the handlers of each of its informers.
var soakHandlers = []string{"durable", "plain", "late"}

// lateAfter the others a plain handler is added, as controller-runtime does.
const lateAfter = 2 * time.Second

func soakJournal(dir, resource, handler string, life int) string {
	if handler == "durable" { // One for all lives.
		life = 0
	}
	return filepath.Join(dir, fmt.Sprintf("%s-%s-%d", resource, handler, life))
}

// soakDump is what the agent says when asked, by resource.
type soakDump map[string]soakState

type soakState struct {
	Contents map[string]string // As contentOf says.
	Status   warmwatch.InformerStatus
	Err      string // Status.Err, or what is wrong with an index.
}

// contentOf is an object's uid, resourceVersion, and a sum of all of it: where etcd
// was put back, the same version may be of another content.
func contentOf(obj any) string {
	o, ok := obj.(runtime.Object)
	if !ok {
		return fmt.Sprintf("%T", obj)
	}
	o = o.DeepCopyObject()
	if _, free := o.(*unstructured.Unstructured); !free {
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // Items of a list have none.
	}
	b, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	h := fnv.New64a()
	_, _ = h.Write(b) // A hash's Write never fails.
	return fmt.Sprintf("%s@%x", versionOf(obj), h.Sum64())
}

// soakLog is a handler that writes down what it is told, a line for each.
type soakLog struct{ *os.File }

func (l soakLog) OnAdd(obj any, initial bool) {
	kind := "add"
	if initial {
		kind = "initial"
	}
	l.write(kind, keyOf(obj), "", contentOf(obj))
}

func (l soakLog) OnUpdate(old, obj any) {
	l.write("update", keyOf(obj), contentOf(old), contentOf(obj))
}

func (l soakLog) OnDelete(obj any) {
	kind, key := "delete", ""
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		kind, key, obj = "lost", lost.Key, lost.Obj
	} else {
		key = keyOf(obj)
	}
	l.write(kind, key, "", contentOf(obj))
}

func (l soakLog) write(kind, key, old, obj string) {
	_, err := fmt.Fprintf(l, "%d %s %s %s %s\n", time.Now().UnixMilli(), kind, key, orDash(strings.ReplaceAll(old, " ", "_")), orDash(strings.ReplaceAll(obj, " ", "_")))
	if err != nil {
		panic(err) // What is not in the journal must not be acknowledged.
	}
}

const labelIndex = "label"

func byLabel(obj any) ([]string, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	return []string{m.GetLabels()["third"]}, nil
}

// checkLabels compares the index with a recomputation (I1). Objects change
// meanwhile, but not their label.
func checkLabels(indexer cache.Indexer) error {
	indexed := map[string]bool{}
	for _, value := range indexer.ListIndexFuncValues(labelIndex) {
		keys, err := indexer.IndexKeys(labelIndex, value)
		if err != nil {
			return err
		}
		for _, key := range keys {
			obj, exists, err := indexer.GetByKey(key)
			if err != nil {
				return err
			}
			if values, err := byLabel(obj); exists && (err != nil || values[0] != value) {
				return fmt.Errorf("%s with %q is indexed under %q: %w", key, values, value, err)
			}
			indexed[key] = true
		}
	}
	for _, key := range indexer.ListKeys() {
		if _, exists, err := indexer.GetByKey(key); exists && err == nil && !indexed[key] {
			return fmt.Errorf("%s is not indexed", key)
		}
	}
	return nil
}

// listWatchOf is for one of soaked.
func listWatchOf(cfg *rest.Config, resource schema.GroupVersionResource, namespace string) (cache.ListerWatcher, runtime.Object, error) {
	if resource == widgets {
		client, err := dynamic.NewForConfig(cfg)
		if err != nil {
			return nil, nil, err
		}
		c := client.Resource(resource).Namespace(namespace)
		example := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "e2e.example.com/v1", "kind": "Widget"}}
		return newListWatch(client, c.List, c.Watch, nil), example, nil
	}
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, nil, err
	}
	if resource == secrets {
		c := client.CoreV1().Secrets(namespace)
		return newListWatch(client, c.List, c.Watch, nil), &corev1.Secret{}, nil
	}
	return configMapsIn(client, namespace), &corev1.ConfigMap{}, nil
}

// runSoakAgent keeps caches until in ends. For each line of in it writes a
// soakDump.
func runSoakAgent(ctx context.Context, config string, in io.Reader, out io.Writer) (err error) {
	var o soakConfig
	if err := json.Unmarshal([]byte(config), &o); err != nil {
		return err
	}
	cfg := link.Attach(&rest.Config{
		Host: o.Host, BearerToken: o.Token, TLSClientConfig: rest.TLSClientConfig{CAData: o.CAData}, QPS: -1,
	}, o.Link)
	c, err := warmwatch.Open(filepath.Join(o.Dir, "cache.db"), warmwatch.Options{MemoryBudget: 64 << 10})
	if err != nil {
		return err
	}
	cfg.Wrap(c.WrapTransport)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informers := map[string]*warmwatch.SharedIndexInformer{}
	var running sync.WaitGroup
	for _, resource := range soaked {
		lw, example, err := listWatchOf(cfg, resource, o.Namespace)
		if err != nil {
			return err
		}
		informer, err := c.NewSharedIndexInformer(lw, example, warmwatch.InformerOptions{
			Resource: resource, Namespace: o.Namespace, Indexers: cache.Indexers{labelIndex: byLabel}, IndexVersion: "1",
		})
		if err != nil {
			return err
		}
		informers[resource.Resource] = informer
		if err := addSoakHandlers(ctx, &running, informer, o, resource.Resource); err != nil {
			return err
		}
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	encoder := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if err := encoder.Encode(dumpOf(informers)); err != nil {
			return err
		}
	}
	cancel()
	running.Wait()
	return c.Close()
}

func addSoakHandlers(ctx context.Context, running *sync.WaitGroup, informer *warmwatch.SharedIndexInformer, o soakConfig, resource string) error {
	open := func(handler string) (soakLog, error) {
		f, err := os.OpenFile(soakJournal(o.Dir, resource, handler, o.Life), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		return soakLog{f}, err
	}
	durable, err := open("durable")
	plain, err2 := open("plain")
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	_, err = informer.AddDurableEventHandler("durable", durable)
	_, err2 = informer.AddEventHandler(plain)
	running.Go(func() {
		select {
		case <-time.After(lateAfter):
		case <-ctx.Done():
			return
		}
		// Added before its journal is there, for which the test waits.
		late := &lateLog{}
		late.Lock()
		defer late.Unlock()
		_, err := informer.AddEventHandler(late)
		if err == nil {
			late.soakLog, err = open("late")
		}
		if err != nil && ctx.Err() == nil {
			panic(err)
		}
	})
	return errors.Join(err, err2)
}

// lateLog is a soakLog that is opened when it has been added.
type lateLog struct {
	sync.Mutex
	soakLog
}

func (l *lateLog) OnAdd(obj any, initial bool) { l.opened().OnAdd(obj, initial) }
func (l *lateLog) OnUpdate(old, obj any)       { l.opened().OnUpdate(old, obj) }
func (l *lateLog) OnDelete(obj any)            { l.opened().OnDelete(obj) }

func (l *lateLog) opened() soakLog {
	l.Lock()
	defer l.Unlock()
	return l.soakLog
}

func dumpOf(informers map[string]*warmwatch.SharedIndexInformer) soakDump {
	d := soakDump{}
	for name, informer := range informers {
		s := soakState{Contents: map[string]string{}, Status: informer.Status()}
		for _, obj := range informer.GetStore().List() {
			s.Contents[keyOf(obj)] = contentOf(obj)
		}
		if s.Status.Err != nil {
			s.Err, s.Status.Err = s.Status.Err.Error(), nil
		}
		if err := checkLabels(informer.GetIndexer()); err != nil {
			s.Err = err.Error()
		}
		d[name] = s
	}
	return d
}
