package contract_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// Some of the contract ends the program, so it runs in another process.

func init() {
	for impl, make := range map[string]func(cache.ListerWatcher, cache.Indexers) (cache.SharedIndexInformer, error){
		"client-go": func(lw cache.ListerWatcher, indexers cache.Indexers) (cache.SharedIndexInformer, error) {
			return cache.NewSharedIndexInformer(lw, &corev1.ConfigMap{}, time.Second, indexers), nil
		},
		"warmwatch": func(lw cache.ListerWatcher, indexers cache.Indexers) (cache.SharedIndexInformer, error) {
			c, err := warmwatch.Open(context.Background(), os.Getenv("WARMWATCH_TEST_FILE"), warmwatch.Options{})
			if err != nil {
				return nil, err
			}
			return c.NewSharedIndexInformer(lw, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps, ResyncPeriod: time.Second, Indexers: indexers})
		},
	} {
		for name, h := range map[string]func(f *source.Source) cache.ResourceEventHandler{
			"panicking handler": func(*source.Source) cache.ResourceEventHandler {
				return cache.ResourceEventHandlerFuncs{AddFunc: func(any) { panic("the handler's") }}
			},
			"handler that panics in a resync": func(*source.Source) cache.ResourceEventHandler {
				return cache.ResourceEventHandlerFuncs{UpdateFunc: func(any, any) { panic("the handler's") }}
			},
			"handler that mutates an initial object": func(*source.Source) cache.ResourceEventHandler {
				return cache.ResourceEventHandlerFuncs{AddFunc: mutate}
			},
			"handler that mutates an update": func(f *source.Source) cache.ResourceEventHandler {
				return cache.ResourceEventHandlerFuncs{
					AddFunc:    func(any) { f.Put(source.ConfigMap("a")) },
					UpdateFunc: func(_, obj any) { mutate(obj) },
				}
			},
			"failing index function": nil,
		} {
			programs[impl+"/"+name] = func([]string) error {
				f := source.Of()
				f.Put(source.ConfigMap("a"))
				indexers := cache.Indexers{}
				if h == nil {
					indexers["content"] = func(any) ([]string, error) { return nil, errors.New("no index value") }
				}
				informer, err := make(f, indexers)
				if err != nil {
					return err
				}
				if h != nil {
					if _, err := informer.AddEventHandler(h(f)); err != nil {
						return err
					}
				}
				time.AfterFunc(20*time.Second, func() {
					fmt.Fprintln(os.Stderr, "still alive")
					os.Exit(3)
				})
				informer.RunWithContext(context.Background())
				return errors.New("Run has returned")
			}
		}
	}
}

func mutate(obj any) { obj.(*corev1.ConfigMap).Data = map[string]string{"mutated": "yes"} }

func TestWhatEndsTheProgramWithClientGoEndsItWithWarmwatch(t *testing.T) {
	for name, want := range map[string]string{
		"panicking handler":                      "the handler's",
		"handler that panics in a resync":        "the handler's",
		"handler that mutates an initial object": "cache *v1.ConfigMap modified",
		"handler that mutates an update":         "cache *v1.ConfigMap modified",
		"failing index function":                 `unable to calculate an index entry for key "ns/a" on index "content": no index value`,
	} {
		t.Run(name, func(t *testing.T) {
			for _, impl := range []implementation{clientGo, ours} {
				t.Run("impl="+impl.name, func(t *testing.T) {
					t.Parallel() // The program may have to wait for client-go, a second of real time.
					out := testsupport.Crash(t, impl.name+"/"+name,
						"KUBE_CACHE_MUTATION_DETECTOR=true",
						"WARMWATCH_TEST_FILE="+filepath.Join(t.TempDir(), "cache.db"))
					if !strings.Contains(out, want) {
						t.Errorf("the program did not end with %q:\n%s", want, out)
					}
				})
			}
		})
	}
}
