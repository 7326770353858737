package contract_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
)

// worldObjects are enough to be compared by version.
const worldObjects = 160

// worldLife runs an informer once, until it has what the server has. It returns what was asked
// for: schema, lists; sorted.
func worldLife(t *testing.T, api *httpserver.Server, path string, lists ...func(*corev1.ConfigMapList)) []string {
	t.Helper()
	c, err := warmwatch.Open(t.Context(), path, warmwatch.Options{Logger: &testsupport.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	config := api.Config()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	config.Wrap(c.WrapTransport)
	client := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("ns")
	lw := &cache.ListWatch{WatchFuncWithContext: client.Watch, ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		l, err := client.List(ctx, o)
		for _, change := range lists {
			change(l)
		}
		return l, err
	}}
	var source cache.ListerWatcher = lw
	if len(lists) > 0 { // Its watches do not change lists.
		source = unstreamed{lw}
	}
	informer, err := c.NewSharedIndexInformer(source, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps, Namespace: "ns"})
	if err != nil {
		t.Fatal(err)
	}
	api.Take()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { informer.RunWithContext(ctx) })
	process.Until(func() bool { return informer.Status().Phase == warmwatch.PhaseLive })
	got := map[string]string{}
	for _, obj := range informer.GetStore().List() {
		cm := obj.(*corev1.ConfigMap)
		got[cm.Name] = string(cm.UID) + "@" + cm.ResourceVersion + " " + cm.Data["data"]
	}
	want := map[string]string{}
	api.Change(func(w *httpserver.World) {
		l := &corev1.ConfigMapList{}
		for _, cm := range w.Objects {
			l.Items = append(l.Items, *cm)
		}
		for _, change := range lists {
			change(l)
		}
		for _, cm := range l.Items {
			want[cm.Name] = string(cm.UID) + "@" + cm.ResourceVersion + " " + cm.Data["data"]
		}
	})
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the store (-server +store):\n%s", d)
	}
	if n := c.Metrics().Informers[0].ReceivedBytes; n["other"] == 0 || n["list"]+n["metadata"]+n["watch"] == 0 {
		t.Errorf("received %v", n)
	}
	stop()
	wg.Wait()
	for _, e := range c.Timeline() { // The end of the informer is no failure of the server.
		if e.Code == warmwatch.CodeServerFails && strings.Contains(e.Message, "cancel") {
			t.Errorf("in the timeline: %+v", e)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	asked := slices.DeleteFunc(api.Take(), func(s string) bool {
		return s == "watch" || s == "probe" || s == "GET /api/v1/namespaces/kube-system"
	})
	slices.Sort(asked)
	return asked
}

// newWorld has objects o000 to o159, with uid u and data v1, of versions 1 to 160.
func newWorld(t *testing.T, objects int) *httpserver.Server {
	api := httpserver.New(t, "cluster")
	api.Change(func(w *httpserver.World) {
		w.Schema = "s1"
		for i := range objects {
			w.Put(fmt.Sprintf("o%03d", i), "u", "v1")
		}
	})
	return api
}

// TestWhenTheWatchHasExpiredOnlyWhatChangedIsGot, if versions prove what the objects are.
func TestWhenTheWatchHasExpiredOnlyWhatChangedIsGot(t *testing.T) {
	refuse := func(what string, code int) func(*httpserver.World) {
		return func(w *httpserver.World) {
			w.Put("o007", "u", "v2")
			w.Meddle = func(name string, rw http.ResponseWriter) bool {
				if name == what {
					rw.WriteHeader(code)
				}
				return name == what
			}
		}
	}
	for name, c := range map[string]struct {
		objects int // Default worldObjects.
		change  func(w *httpserver.World)
		want    []string
	}{
		"nothing has changed": {
			change: func(w *httpserver.World) { w.Version++ },
			want:   []string{"metadata", "o000", "schema"},
		},
		"updated, deleted, replaced and new objects": {
			change: func(w *httpserver.World) {
				w.Put("o001", "u", "v2")
				w.Put("o002", "u", "v2")
				w.Delete("o003")
				w.Delete("o004")
				w.Put("o004", "other", "v1")
				w.Put("new", "u", "v1")
			},
			want: []string{"metadata", "new", "o000", "o001", "o002", "o004", "schema"},
		},
		"what has changed again since the list is got as the list has it": {
			change: func(w *httpserver.World) {
				w.Put("o001", "u", "v2")
				w.Put("o002", "u", "v2")
				newer := w.Objects["o001"].DeepCopy()
				newer.ResourceVersion, newer.Data = "500", map[string]string{"data": "v3"}
				w.Since["o001"] = newer
			},
			want: []string{"metadata", "o000", "o001", "o001 exact", "o002", "schema"},
		},
		"another schema": {
			change: func(w *httpserver.World) {
				w.Version++
				w.Schema = "s2"
				for name, o := range w.Objects {
					if name != "o000" && name != "o159" { // These are looked at before the watch is resumed.
						o.Data["data"] = "v1 with a default"
					}
				}
			},
			want: []string{"all", "schema"},
		},
		"a schema that may not be read any more": {
			change: func(w *httpserver.World) { w.Version++; w.Schema = "" },
			want:   []string{"all", "schema"},
		},
		"more than a sixteenth has changed": {
			change: func(w *httpserver.World) {
				for i := range worldObjects/16 + 1 {
					w.Put(fmt.Sprintf("o%03d", 2*i), "u", "v2")
				}
			},
			want: []string{"all", "metadata", "schema"},
		},
		"few objects": {
			objects: 99,
			change:  func(w *httpserver.World) { w.Version++ },
			want:    []string{"all"},
		},
		"another history, which has an object that is older than the store": {
			change: func(w *httpserver.World) {
				w.Version++
				w.Objects["o005"].ResourceVersion = "3"
				w.Objects["o005"].Data["data"] = "of another history"
				w.Objects["o006"].Data["data"] = "the same version, another history"
			},
			want: []string{"all", "metadata", "schema"},
		},
		"an answer that is older than the store": {
			change: func(w *httpserver.World) {
				w.Put("o007", "u", "v2")
				lacking, newest := w.Objects["o008"], w.Version
				w.Meddle = func(name string, _ http.ResponseWriter) bool {
					if w.Version, w.Objects["o008"] = newest, lacking; name == "metadata" { // Of a time when it was not there.
						w.Version = worldObjects - 1
						delete(w.Objects, "o008")
					}
					return false
				}
			},
			want: []string{"all", "metadata", "schema"},
		},
		"a server that does not know metadata lists": {
			change: func(w *httpserver.World) {
				w.Put("o007", "u", "v2")
				w.Meddle = func(name string, rw http.ResponseWriter) bool {
					if name == "metadata" {
						rw.Header().Set("Content-Type", "application/json")
						fmt.Fprint(rw, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"161"},"items":[]}`)
					}
					return name == "metadata"
				}
			},
			want: []string{"all", "metadata", "schema"},
		},
		"metadata is not acceptable": {change: refuse("metadata", http.StatusNotAcceptable), want: []string{"all", "metadata", "schema"}},
		"another server of the group, which is behind": {
			change: func(w *httpserver.World) {
				w.Put("o007", "u", "v2")
				w.Meddle = func(name string, rw http.ResponseWriter) bool {
					if name == "o007" {
						rw.WriteHeader(http.StatusGatewayTimeout)
						fmt.Fprint(rw, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Timeout","code":504,
							"details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}`)
					}
					return name == "o007"
				}
			},
			want: []string{"all", "metadata", "o000", "o007", "schema"},
		},
		"a name is no field": {change: refuse("o007", http.StatusBadRequest), want: []string{"all", "metadata", "o000", "o007", "schema"}},
		"field selectors are not known": {
			change: func(w *httpserver.World) { w.Put("o007", "u", "v2"); w.NoSelectors = true },
			want:   []string{"all", "metadata", "o000", "schema"},
		},
		"nothing is left": {
			change: func(w *httpserver.World) { w.Version++; clear(w.Objects) },
			want:   []string{"all", "metadata", "schema"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.objects == 0 {
				c.objects = worldObjects
			}
			api, path := newWorld(t, c.objects), testsupport.Path(t)
			worldLife(t, api, path)
			api.Change(c.change)
			if d := cmp.Diff(c.want, worldLife(t, api, path)); d != "" {
				t.Errorf("asked for (-want +got):\n%s", d)
			}
		})
	}
}

// cut answers with the beginning of a list.
func cut(rw http.ResponseWriter) {
	rw.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	rw.Header().Set("Content-Length", strconv.Itoa(1<<20))
	fmt.Fprint(rw, "k8s\x00")
}

// cutOnce has the next answer to one kind of request cut.
func cutOnce(w *httpserver.World, what string) {
	done := false
	w.Meddle = func(name string, rw http.ResponseWriter) bool {
		if name != what || done {
			return false
		}
		done = true
		cut(rw)
		return true
	}
}

// TestAMetadataListThatIsCutIsAskedForAgain, and nothing of it is taken for a deletion.
func TestAMetadataListThatIsCutIsAskedForAgain(t *testing.T) {
	api, path := newWorld(t, worldObjects), testsupport.Path(t)
	worldLife(t, api, path)
	api.Change(func(w *httpserver.World) {
		w.Version++
		cutOnce(w, "metadata")
	})
	got := worldLife(t, api, path)
	if d := cmp.Diff([]string{"metadata", "metadata", "o000", "schema"}, got); d != "" {
		t.Errorf("asked for (-want +got):\n%s", d)
	}
}

// TestWhatIsCutOrPutOffEachTimeIsListedInAnotherWay: a proxy may do so with these requests only.
func TestWhatIsCutOrPutOffEachTimeIsListedInAnotherWay(t *testing.T) {
	for name, c := range map[string]struct {
		what   string
		answer func(http.ResponseWriter)
		want   []string
	}{
		"metadata that is cut":     {"metadata", cut, []string{"all", "all", "all", "metadata", "metadata"}}, // In pages of 62 and more.
		"metadata that is put off": {"metadata", func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusTooManyRequests) }, []string{"all", "metadata", "metadata"}},
		"an object that is put off": {
			"o007", func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusTooManyRequests) },
			[]string{"all", "metadata", "metadata", "o000", "o000", "o007", "o007"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, path := newWorld(t, worldObjects), testsupport.Path(t)
			worldLife(t, api, path)
			api.Change(func(w *httpserver.World) {
				w.Put("o007", "u", "v2")
				w.Meddle = func(name string, rw http.ResponseWriter) bool {
					if name == c.what {
						c.answer(rw)
					}
					return name == c.what
				}
			})
			if d := cmp.Diff(c.want, slices.DeleteFunc(worldLife(t, api, path), func(s string) bool { return s == "schema" })); d != "" {
				t.Errorf("asked for (-want +got):\n%s", d)
			}
		})
	}
}

// TestAListFuncThatAddsIsBelieved: what it adds is in no answer of the server, and was not deleted.
func TestAListFuncThatAddsIsBelieved(t *testing.T) {
	api, path := newWorld(t, worldObjects), testsupport.Path(t)
	add := func(l *corev1.ConfigMapList) {
		l.Items = append(l.Items, corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "added", UID: "a", ResourceVersion: "1"}})
	}
	worldLife(t, api, path, add)
	api.Change(func(w *httpserver.World) { w.Version++ })
	if d := cmp.Diff([]string{"all", "metadata", "o000", "schema"}, worldLife(t, api, path, add)); d != "" {
		t.Errorf("asked for (-want +got):\n%s", d)
	}
}

// TestAListThatIsCutComesInPages, and nothing of it is taken for a deletion: a first list, and one
// that compares contents.
func TestAListThatIsCutComesInPages(t *testing.T) {
	api, path := newWorld(t, 600), testsupport.Path(t)
	for range 2 {
		api.Change(func(w *httpserver.World) {
			w.Version++
			w.Schema += "x"
			cutOnce(w, "all")
		})
		got := map[string]int{}
		for _, asked := range worldLife(t, api, path) {
			got[asked]++
		}
		if got["all"] != 6 { // One that is cut, a page of 62, and four that are larger.
			t.Errorf("asked for %v", got)
		}
	}
}

// TestAListFuncThatFiltersIsListedAtEachStart: its requests do not say what it leaves out, so that the answer to the
// question contradicts the store.
func TestAListFuncThatFiltersIsListedAtEachStart(t *testing.T) {
	api, path := newWorld(t, worldObjects), testsupport.Path(t)
	filter := func(l *corev1.ConfigMapList) {
		l.Items = slices.DeleteFunc(l.Items, func(cm corev1.ConfigMap) bool { return cm.Name < "o010" })
	}
	worldLife(t, api, path, filter)
	for _, change := range []func(w *httpserver.World){
		func(w *httpserver.World) { w.Version++ },
		func(w *httpserver.World) { w.Put("o001", "u", "v2") },
	} {
		api.Change(change)
		if d := cmp.Diff([]string{"all", "schema"}, worldLife(t, api, path, filter)); d != "" {
			t.Errorf("asked for (-want +got):\n%s", d)
		}
	}
}
