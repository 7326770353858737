package debug_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/debug"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// all has everything on.
var all = debug.Options{Objects: true, Actions: true}

// launch runs an informer of ConfigMaps in a bubble.
func launch(t *testing.T, objects ...runtime.Object) (*process.Process, *source.Source) {
	f := source.New(t, objects...)
	p := process.Launch(t, testsupport.Path(t), f, nil).Run()
	bubble.Settle()
	f.TakeRequests()
	return p, f
}

// request makes a request, with headers as "Name: value".
func request(h http.Handler, method, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestTheFormatIsTheOneAskedFor(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		p, f := launch(t, source.ConfigMap("a"))
		h := debug.Handler(p.Cache, debug.Options{})
		for _, test := range []struct {
			target, accept, want string
			status               int
		}{
			{"/", "text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8", 200},
			{"/", "*/*", "text/plain; charset=utf-8", 200},
			{"/", "", "text/plain; charset=utf-8", 200},
			{"/", "image/png, application/json;q=0.9", "application/json; charset=utf-8", 200},
			{"/?format=text", "text/html", "text/plain; charset=utf-8", 200},
			{"/?format=json", "text/html", "application/json; charset=utf-8", 200},
			{"/?format=html", "", "text/html; charset=utf-8", 200},
			{"/?format=yaml", "", "text/plain; charset=utf-8", 400},
		} {
			for _, method := range []string{"GET", "HEAD"} {
				w := request(h, method, test.target, "Accept: "+test.accept)
				if got := w.Header().Get("Content-Type"); w.Code != test.status || got != test.want {
					t.Errorf("%s %s, accepting %q: %d, %s", method, test.target, test.accept, w.Code, got)
				}
			}
		}
		w := request(h, "GET", "/?format=html")
		if policy := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; style-src 'nonce-") {
			t.Errorf("policy %q", policy)
		}
		for _, want := range []string{"configmaps/v1 (typed)", "Live", "FirstStart 1", "None.", "#caughtup"} {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("the page lacks %s:\n%s", want, w.Body)
			}
		}
		if got := f.TakeRequests(); len(got) > 0 {
			t.Errorf("to show the page, the server was asked: %q", got)
		}
	})
}

func TestWhatIsAllowed(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		p, f := launch(t, source.ConfigMap("a"))
		for _, test := range []struct {
			name           string
			options        debug.Options
			method, target string
			headers        []string
			want           int
		}{
			{"a page", debug.Options{}, "GET", "/", nil, 200},
			{"a POST of the page", all, "POST", "/", nil, 405},
			{"another page", all, "GET", "/x", nil, 404},
			{"compare without Actions", debug.Options{Objects: true}, "POST", "/compare", nil, 404},
			{"relist without Actions", debug.Options{Objects: true}, "POST", "/relist", nil, 404},
			{"objects without Objects", debug.Options{Actions: true}, "GET", "/objects?informer=x", nil, 404},
			{"a GET of compare", all, "GET", "/compare", nil, 405},
			{"a GET of relist", all, "GET", "/relist", nil, 405},
			{"relist from another site", all, "POST", "/relist", []string{"Sec-Fetch-Site: cross-site"}, 403},
			{"compare from another site", all, "POST", "/compare", []string{"Origin: https://example.net"}, 403},
			{"compare from the page", all, "POST", "/compare", []string{"Origin: http://example.com"}, 200},
			{"relist by curl", all, "POST", "/relist", nil, 200},
			{"objects of no informer", all, "GET", "/objects?informer=x", nil, 404},
			{"no object", all, "GET", "/objects?informer=configmaps/v1+(typed)&key=ns/b", nil, 404},
			{"an object", all, "GET", "/objects?informer=configmaps/v1+(typed)&key=ns/a", nil, 200},
		} {
			f.TakeRequests()
			w := request(debug.Handler(p.Cache, test.options), test.method, test.target, test.headers...)
			if w.Code != test.want {
				t.Errorf("%s: %d, want %d: %s", test.name, w.Code, test.want, w.Body)
			}
			bubble.Settle() // After a relist a watch is opened.
			if asked := f.TakeRequests(); (len(asked) > 0) != (test.method == "POST" && w.Code == 200) {
				t.Errorf("%s: the server was asked %q", test.name, asked)
			}
		}
	})
}

// TestAnyPath: the page and its relative links work under each path that it can be mounted at.
func TestAnyPath(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		p, _ := launch(t)
		h := debug.Handler(p.Cache, all)
		for _, mount := range []string{"/debug/warmwatch", "/debug/warmwatch/"} {
			under := http.StripPrefix(mount, h)
			if w := request(under, "GET", "/debug/warmwatch/"); w.Code != 200 {
				t.Errorf("below %s: %d", mount, w.Code)
			}
			if w := request(under, "POST", "/debug/warmwatch/compare"); w.Code != 200 {
				t.Errorf("compare below %s: %d", mount, w.Code)
			}
		}
		w := request(http.StripPrefix("/debug/warmwatch", h), "GET", "/debug/warmwatch?format=text")
		if got := w.Header().Get("Location"); w.Code != http.StatusTemporaryRedirect || got != "./warmwatch/?format=text" {
			t.Errorf("without the slash: %d, %q", w.Code, got)
		}
	})
}

func TestCompareShowsAndRelistRepairs(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		p, f := launch(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("same"))
		f.Lose(func() {
			f.Put(source.ConfigMap("a", "new"), source.ConfigMap("new"))
			f.Remove("b")
		})
		h := debug.Handler(p.Cache, all)
		want := "configmaps/v1 (typed)\n  missing 1: ns/new\n  surplus 1: ns/b\n  different 1: ns/a\n"
		for _, target := range []string{"/compare", "/compare?informer=configmaps/v1+(typed)"} {
			if got := request(h, "POST", target).Body.String(); got != want {
				t.Errorf("%s:\n%s", target, got)
			}
		}
		if got := request(h, "POST", "/compare?informer=x").Body.String(); !strings.Contains(got, "no informer of this name") {
			t.Error(got)
		}
		if w := request(h, "POST", "/relist"); w.Code != 200 || !strings.Contains(w.Body.String(), "FullRelist") || strings.Contains(w.Body.String(), "Opened") ||
			strings.Contains(w.Body.String(), "ServerFails") {
			t.Errorf("relist: %d %s", w.Code, w.Body)
		}
		process.ExpectStore(t, p.Informer, f)
		if got := request(h, "POST", "/compare").Body.String(); strings.Count(got, " 0\n") != 3 {
			t.Errorf("after the relist:\n%s", got)
		}
		f.SetDown(source.ErrUnreachable)
		r := httptest.NewRequest("POST", "/relist", nil)
		ctx, cancel := context.WithTimeout(r.Context(), 1)
		defer cancel()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(ctx))
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), context.DeadlineExceeded.Error()) {
			t.Errorf("without a server: %d %s", w.Code, w.Body)
		}
		if got := request(h, "POST", "/compare").Body.String(); !strings.Contains(got, source.ErrUnreachable.Error()) {
			t.Error(got)
		}
	})
}

// TestObjects: their keys and contents, but for those of Secrets.
func TestObjects(t *testing.T) {
	const told = "told"
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Data: map[string][]byte{"k": []byte(told)}}
	unstructuredSecret := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"namespace": "ns", "name": "a"}, "data": map[string]any{"k": "dG9sZA=="},
	}}
	for name, test := range map[string]struct {
		obj, example runtime.Object
		resource     string
	}{
		"typed":        {secret, &corev1.Secret{}, "secrets"},
		"unstructured": {unstructuredSecret, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret"}}, "secrets"},
		"ConfigMap":    {source.ConfigMap("a", told), &corev1.ConfigMap{}, "configmaps"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				p := process.Launch(t, testsupport.Path(t), source.New(t, test.obj), func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
					o.Resource = corev1.SchemeGroupVersion.WithResource(test.resource)
				}, test.example).Run()
				bubble.Settle()
				h := debug.Handler(p.Cache, all)
				for informer := range p.Cache.Status().Informers {
					at := "/objects?informer=" + strings.ReplaceAll(informer, " ", "+")
					for _, format := range []string{"html", "text", "json"} {
						if w := request(h, "GET", at+"&format="+format); w.Code != 200 || !strings.Contains(w.Body.String(), "ns/a") {
							t.Errorf("keys as %s: %d %s", format, w.Code, w.Body)
						}
						w := request(h, "GET", at+"&key=ns/a&format="+format)
						text := w.Body.String()
						shows := strings.Contains(text, told) || strings.Contains(text, "dG9sZA")
						if w.Code != 200 || shows != (test.resource == "configmaps") || !strings.Contains(text, "uid-1") {
							t.Errorf("the object as %s: %d %s", format, w.Code, text)
						}
					}
				}
			})
		})
	}
}

// TestReadyCheck is nil while the cache is served, from wherever, with and without a server.
func TestReadyCheck(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		f.SetDown(source.ErrUnreachable)
		path := testsupport.Path(t)
		empty, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer empty.Close()
		if debug.ReadyCheck(empty)(nil) == nil {
			t.Error("ready without an informer")
		}
		p := process.Launch(t, path, f, nil)
		expect := func(when string, ready bool) {
			t.Helper()
			if err := debug.ReadyCheck(p.Cache)(nil); (err == nil) != ready || err != nil && !strings.Contains(err.Error(), "configmaps/v1 (typed)") {
				t.Errorf("%s: %v", when, err)
			}
		}
		expect("before it runs", false)
		p.Run()
		bubble.Settle()
		expect("without a server and a file", false)
		f.SetDown(nil)
		bubble.Settle()
		expect("from the server", true)
		f.SetDown(errors.New("gone"))
		bubble.Settle()
		expect("once the server is away", true)
		p.Stop()
		p = process.Launch(t, path, f, nil).Run()
		expect("from disk without a server", true)
		f.SetDown(nil)
		source.Relisted(f, func() { f.Put(source.ConfigMap("b")) })
		expect("after a relist", true)
	})
}
