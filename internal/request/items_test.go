package request

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	metadataclient "k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

var legacyJSON = scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion)

// configMapsOf returns a list of the objects from..to of metadataOf, with data.
func configMapsOf(from, to int, m metav1.ListMeta) *corev1.ConfigMapList {
	l := typed(&corev1.ConfigMapList{ListMeta: m})
	for _, o := range metadataOf(to, m).Items[from:] {
		l.Items = append(l.Items, corev1.ConfigMap{ObjectMeta: o.ObjectMeta, Data: map[string]string{"of": o.Name}})
	}
	return l
}

// customOf is that list, as a server encodes custom resources: sorted, so that items are before what
// the list is of.
func customOf(t *testing.T, l *corev1.ConfigMapList) []byte {
	u := &unstructured.UnstructuredList{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMapList", "metadata": map[string]any{"resourceVersion": l.ResourceVersion, "continue": l.Continue},
	}}
	for _, cm := range l.Items {
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed(&cm))
		if err != nil {
			t.Fatal(err)
		}
		u.Items = append(u.Items, unstructured.Unstructured{Object: object})
	}
	b, err := json.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// watched is what a client has read from a watch.
type watched struct {
	objects []string // Name, and data.
	version string   // Of the bookmark behind them. Empty if there was none.
	err     error    // Of an event.
}

// read reads w up to the bookmark, or its end.
func (got *watched) read(w watch.Interface) error {
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			got.err = apierrors.FromObject(e.Object)
			return got.err
		}
		m, err := meta.Accessor(e.Object)
		if err != nil {
			return err
		}
		data := ""
		switch o := e.Object.(type) {
		case *corev1.ConfigMap:
			data = o.Data["of"]
		case *unstructured.Unstructured:
			data, _, _ = unstructured.NestedString(o.Object, "data", "of")
		}
		if e.Type == watch.Bookmark && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			got.version = m.GetResourceVersion()
			return nil
		}
		got.objects = append(got.objects, strings.TrimSuffix(m.GetName()+" "+data, " "))
	}
	return errors.New("the watch has ended")
}

func all(Item, []byte) (bool, error) { return false, nil }

// initial asks for initial events, as a Resumer does.
func initial() metav1.ListOptions {
	return metav1.ListOptions{
		SendInitialEvents: new(true), AllowWatchBookmarks: true, TimeoutSeconds: new(int64(300)), LabelSelector: "l",
		ResourceVersion: "9", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	}
}

// openers open a watch of ConfigMaps, by clients of each kind.
func openers(config *rest.Config) map[string]func(context.Context) (watch.Interface, error) {
	with := func(contentType string) *rest.Config {
		c := rest.CopyConfig(config)
		c.ContentType, c.AcceptContentTypes = contentType, contentType
		return c
	}
	return map[string]func(context.Context) (watch.Interface, error){
		"typed, protobuf": func(ctx context.Context) (watch.Interface, error) {
			return kubernetes.NewForConfigOrDie(with(runtime.ContentTypeProtobuf)).CoreV1().ConfigMaps("").Watch(ctx, initial())
		},
		"typed, JSON": func(ctx context.Context) (watch.Interface, error) {
			return kubernetes.NewForConfigOrDie(with(runtime.ContentTypeJSON)).CoreV1().ConfigMaps("").Watch(ctx, initial())
		},
		"dynamic": func(ctx context.Context) (watch.Interface, error) {
			return dynamic.NewForConfigOrDie(config).Resource(configMapGVR).Watch(ctx, initial())
		},
		"metadata": func(ctx context.Context) (watch.Interface, error) {
			return metadataclient.NewForConfigOrDie(config).Resource(configMapGVR).Watch(ctx, initial())
		},
	}
}

// listInto has a client read a list from n.
func listInto(t *testing.T, n http.RoundTripper, client string, o metav1.ListOptions, same func(Item, []byte) (bool, error)) (got watched, err error) {
	t.Helper()
	open := openers(&rest.Config{Host: "https://server", Transport: Transport{RoundTripper: n}, QPS: -1})[client]
	_, err = Items(t.Context(), o, func(ctx context.Context) error {
		w, err := open(ctx)
		if err != nil {
			return err
		}
		return got.read(w)
	}, same)
	return got, err
}

// TestItemsComeAsEvents, from each form of a list, to each kind of client, page after page.
func TestItemsComeAsEvents(t *testing.T) {
	bodies := map[string]func(*corev1.ConfigMapList) (contentType string, body []byte){
		"protobuf, streamed": func(l *corev1.ConfigMapList) (string, []byte) {
			return runtime.ContentTypeProtobuf, encode(t, streaming, l)
		},
		"protobuf, at once": func(l *corev1.ConfigMapList) (string, []byte) {
			return runtime.ContentTypeProtobuf, encode(t, plain, l)
		},
		"JSON": func(l *corev1.ConfigMapList) (string, []byte) { return "application/json", encode(t, legacyJSON, l) },
		"JSON, items with a kind": func(l *corev1.ConfigMapList) (string, []byte) {
			for i := range l.Items {
				typed(&l.Items[i])
			}
			return "application/json", encode(t, legacyJSON, l)
		},
		"JSON, as custom resources": func(l *corev1.ConfigMapList) (string, []byte) {
			return "application/json", customOf(t, l)
		},
		"metadata in protobuf": func(l *corev1.ConfigMapList) (string, []byte) {
			m := metadataOf(0, l.ListMeta)
			for _, cm := range l.Items {
				m.Items = append(m.Items, metav1.PartialObjectMetadata{ObjectMeta: cm.ObjectMeta})
			}
			return runtime.ContentTypeProtobuf, encode(t, plain, m)
		},
	}
	for _, c := range []struct{ client, body string }{
		{"typed, protobuf", "protobuf, streamed"}, {"typed, protobuf", "protobuf, at once"},
		{"typed, JSON", "JSON"}, {"typed, JSON", "JSON, items with a kind"}, {"dynamic", "JSON, items with a kind"}, {"typed, JSON", "JSON, as custom resources"},
		{"dynamic", "JSON"}, {"dynamic", "JSON, as custom resources"},
		{"metadata", "metadata in protobuf"},
	} {
		t.Run(c.client+", "+c.body, func(t *testing.T) {
			n := &network{answer: func(r *http.Request) *http.Response {
				if accept := r.Header.Get("Accept"); c.client == "metadata" && !strings.Contains(accept, "as=PartialObjectMetadataList;") {
					t.Errorf("accepts %q", accept)
				}
				list := configMapsOf(0, 2, metav1.ListMeta{ResourceVersion: "200", Continue: "c"})
				switch r.URL.Query().Get("continue") {
				case "c":
					list = configMapsOf(2, 2, metav1.ListMeta{ResourceVersion: "200", Continue: "d"})
				case "d":
					list = configMapsOf(2, 5, metav1.ListMeta{ResourceVersion: "200"})
				}
				contentType, body := bodies[c.body](list)
				return answer(200, contentType, body)
			}}
			got, err := listInto(t, n, c.client, metav1.ListOptions{ResourceVersion: "7", ResourceVersionMatch: "NotOlderThan", Limit: 2}, all)
			if err != nil || got.version != "200" {
				t.Errorf("version %q, %v", got.version, err)
			}
			want := []string{"o0 o0", "o1 o1", "o2 o2", "o3 o3", "o4 o4"}
			if c.client == "metadata" {
				want = []string{"o0", "o1", "o2", "o3", "o4"}
			}
			if d := cmp.Diff(want, got.objects); d != "" {
				t.Error(d)
			}
			requests := []string{
				"/api/v1/configmaps?continue=c&labelSelector=l&limit=2",
				"/api/v1/configmaps?continue=d&labelSelector=l&limit=2",
				"/api/v1/configmaps?labelSelector=l&limit=2&resourceVersion=7&resourceVersionMatch=NotOlderThan",
			}
			if d := cmp.Diff(requests, n.taken()); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestKnownItemsAreNotDecoded, and the bytes that are compared are those of the object alone.
func TestKnownItemsAreNotDecoded(t *testing.T) {
	list := configMapsOf(0, 4, metav1.ListMeta{ResourceVersion: "200"})
	n := &network{answer: func(*http.Request) *http.Response {
		return answer(200, runtime.ContentTypeProtobuf, encode(t, streaming, list))
	}}
	var seen []Item
	got, err := listInto(t, n, "typed, protobuf", metav1.ListOptions{}, func(i Item, encoded []byte) (bool, error) {
		want, err := list.Items[len(seen)].Marshal()
		if err != nil || string(want) != string(encoded) {
			t.Errorf("%s has other bytes (%v)", i.Name, err)
		}
		seen = append(seen, i)
		return i.Name != "o2", nil
	})
	if err != nil || got.version != "200" {
		t.Errorf("version %q, %v", got.version, err)
	}
	if d := cmp.Diff(itemsOf(4), seen); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"o2 o2"}, got.objects); d != "" {
		t.Error(d)
	}
}

// TestAListThatIsCut anywhere has no bookmark: what is missing would be taken for deleted.
func TestAListThatIsCut(t *testing.T) {
	l := configMapsOf(0, 3, metav1.ListMeta{ResourceVersion: "200"})
	for name, c := range map[string]struct {
		contentType string
		body        []byte
	}{
		"protobuf":           {runtime.ContentTypeProtobuf, encode(t, plain, l)},
		"protobuf, streamed": {runtime.ContentTypeProtobuf, encode(t, streaming, l)},
		"JSON":               {"application/json", encode(t, legacyJSON, l)},
		"custom resources":   {"application/json", customOf(t, l)},
	} {
		t.Run(name, func(t *testing.T) {
			for n := range c.body {
				list, err := listIn(answer(200, c.contentType, c.body[:n]))
				items := 0
				for ; err == nil; items++ {
					_, err = list.next()
				}
				if err == io.EOF && items != 4 && strings.TrimSpace(string(c.body[n:])) != "" { //nolint:errorlint // As it is used.
					t.Errorf("%d of %d bytes are a list of %d objects", n, len(c.body), items-1)
				}
			}
		})
	}
}

// TestItemsThatCannotBeHad end in an error that says whether another form of the list may help.
func TestItemsThatCannotBeHad(t *testing.T) {
	mine := errors.New("mine")
	whole := encode(t, plain, configMapsOf(0, 2, metav1.ListMeta{ResourceVersion: "200"}))
	paged := encode(t, plain, configMapsOf(0, 2, metav1.ListMeta{ResourceVersion: "200", Continue: "c"}))
	unsupported := func(err error) bool { return errors.Is(err, ErrUnsupported) }
	cut := func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }
	status := func(code int, reason string) *http.Response {
		return answer(code, "application/json", fmt.Appendf(nil, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code))
	}
	broken := func(body []byte) *http.Response {
		resp := answer(200, runtime.ContentTypeProtobuf, nil)
		resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(string(body)), brokenReader{}))
		return resp
	}
	for name, c := range map[string]struct {
		answer, second *http.Response
		same           error
		is             func(error) bool
	}{
		"CBOR":                    {answer: answer(200, "application/cbor", whole), is: unsupported},
		"no media type":           {answer: answer(200, "", whole), is: unsupported},
		"a Table in protobuf":     {answer: answer(200, runtime.ContentTypeProtobuf, encode(t, plain, typed(&metav1.Status{}))), is: unsupported},
		"a Table in JSON":         {answer: answer(200, "application/json", []byte(`{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[]}`)), is: unsupported},
		"text":                    {answer: answer(200, "application/json", []byte(`proxy error`)), is: func(err error) bool { return err != nil }},
		"garbage behind the list": {answer: answer(200, "application/json", []byte(`{"kind":"ConfigMapList","items":[],"metadata":{}} {}`)), is: func(err error) bool { return errors.Is(err, errNoList) }},
		"items that are no list":  {answer: answer(200, "application/json", []byte(`{"kind":"ConfigMapList","items":7}`)), is: func(err error) bool { return errors.Is(err, errNoList) }},
		"an item that is none":    {answer: answer(200, "application/json", []byte(`{"kind":"ConfigMapList","items":[null]}`)), is: func(err error) bool { return errors.Is(err, errNoList) }},
		"items of no kind":        {answer: answer(200, "application/json", []byte(`{"items":[{}],"kind":"ConfigMapList"}`)), is: func(err error) bool { return err != nil && !cut(err) }},
		"too old":                 {answer: status(410, "Expired"), is: apierrors.IsResourceExpired},
		"not allowed":             {answer: status(403, "Forbidden"), is: apierrors.IsForbidden},
		"cut":                     {answer: answer(200, runtime.ContentTypeProtobuf, whole[:len(whole)-9]), is: cut},
		"broken":                  {answer: broken(whole[:len(whole)-9]), is: cut},
		"an error of the caller":  {answer: answer(200, runtime.ContentTypeProtobuf, whole), same: mine, is: func(err error) bool { return errors.Is(err, mine) }},
		"a page of another version": {
			answer: answer(200, runtime.ContentTypeProtobuf, paged),
			second: answer(200, runtime.ContentTypeProtobuf, encode(t, plain, configMapsOf(2, 3, metav1.ListMeta{ResourceVersion: "201"}))),
			is:     unsupported,
		},
		"a page that has expired":   {answer: answer(200, runtime.ContentTypeProtobuf, paged), second: status(410, "Expired"), is: unsupported},
		"a page that is put off":    {answer: answer(200, runtime.ContentTypeProtobuf, paged), second: status(429, "TooManyRequests"), is: unsupported},
		"a page that is cut":        {answer: answer(200, runtime.ContentTypeProtobuf, paged), second: answer(200, runtime.ContentTypeProtobuf, whole[:20]), is: cut},
		"a page of another content": {answer: answer(200, runtime.ContentTypeProtobuf, paged), second: answer(200, "text/plain", nil), is: unsupported},
	} {
		t.Run(name, func(t *testing.T) {
			n := &network{answer: func(r *http.Request) *http.Response {
				if r.URL.Query().Get("continue") != "" {
					return c.second
				}
				return c.answer
			}}
			client := "typed, protobuf"
			if c.answer.Header.Get("Content-Type") == "application/json" {
				client = "typed, JSON"
			}
			got, err := listInto(t, n, client, metav1.ListOptions{}, func(Item, []byte) (bool, error) { return false, c.same })
			if !c.is(err) || got.version != "" {
				t.Errorf("version %q, %v", got.version, err)
			}
		})
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("http2: client connection lost") }

// TestAnEmptyList has a bookmark only.
func TestAnEmptyList(t *testing.T) {
	for client, body := range map[string]string{
		"typed, JSON": `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":null}`,
		"dynamic":     `{"apiVersion":"v1","items":[],"kind":"ConfigMapList","metadata":{"resourceVersion":"7"},"other":{"items":[1]}}`,
	} {
		n := &network{answer: func(*http.Request) *http.Response { return answer(200, "application/json", []byte(body)) }}
		if got, err := listInto(t, n, client, metav1.ListOptions{}, all); err != nil || got.version != "7" || got.objects != nil {
			t.Errorf("%s: %+v, %v", client, got, err)
		}
	}
}

// TestItemsAreCompressed unless the client's configuration says that they are not.
func TestItemsAreCompressed(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("Accept-Encoding") == "gzip"; got == disabled {
				t.Errorf("gzip is accepted: %t", got)
			}
			w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
			body := encode(t, streaming, configMapsOf(0, 3, metav1.ListMeta{ResourceVersion: "200"}))
			if disabled {
				_, _ = w.Write(body) // The client tells what it got.
				return
			}
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write(body)
			_ = z.Close()
		}))
		config := &rest.Config{Host: api.URL, QPS: -1, DisableCompression: disabled, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return Transport{RoundTripper: next} })
		var got watched
		_, err := Items(t.Context(), metav1.ListOptions{}, func(ctx context.Context) error {
			w, err := openers(config)["typed, protobuf"](ctx)
			if err != nil {
				return err
			}
			return got.read(w)
		}, all)
		if err != nil || len(got.objects) != 3 {
			t.Errorf("%+v, %v", got, err)
		}
		api.Close()
	}
}

// TestItemsAreReadOnce: a watch that is opened again in the same call gets nothing, because it may be
// of something else, and the call fails.
func TestItemsAreReadOnce(t *testing.T) {
	n := &network{answer: func(*http.Request) *http.Response {
		return answer(200, runtime.ContentTypeProtobuf, encode(t, plain, configMapsOf(0, 1, metav1.ListMeta{ResourceVersion: "200"})))
	}}
	open := openers(&rest.Config{Host: "https://server", Transport: Transport{RoundTripper: n}, QPS: -1})["typed, protobuf"]
	_, err := Items(t.Context(), metav1.ListOptions{}, func(ctx context.Context) error {
		w, err := open(ctx)
		if err != nil {
			return err
		}
		if _, err := open(ctx); err == nil {
			t.Error("a second watch was opened")
		}
		return (&watched{}).read(w)
	}, all)
	if asked := n.taken(); !errors.Is(err, errMore) || len(asked) != 1 {
		t.Errorf("%v, asked for %v", err, asked)
	}
}

// TestNothingIsReadBehindACall that has returned.
func TestNothingIsReadBehindACall(t *testing.T) {
	n := &network{answer: func(*http.Request) *http.Response {
		return answer(200, runtime.ContentTypeProtobuf, encode(t, plain, configMapsOf(0, 1, metav1.ListMeta{ResourceVersion: "200"})))
	}}
	early := errors.New("early")
	var body io.Reader
	asked := false
	_, err := Items(t.Context(), metav1.ListOptions{}, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://server/api/v1/configmaps?watch=1", nil)
		if err != nil {
			return err
		}
		resp, err := Transport{RoundTripper: n}.RoundTrip(r)
		if err != nil {
			return err
		}
		body = resp.Body
		return errors.Join(early, resp.Body.Close())
	}, func(Item, []byte) (bool, error) { asked = true; return false, nil })
	if !errors.Is(err, early) {
		t.Fatal(err)
	}
	if n, err := body.Read(make([]byte, 100)); n > 0 || err == nil || asked {
		t.Errorf("%d bytes, %v, asked for what is known: %t", n, err, asked)
	}
}

// TestAServerThatDoesNotAnswer is told apart from one that cannot list, although a client makes an
// empty watch of a connection that has ended.
func TestAServerThatDoesNotAnswer(t *testing.T) {
	for _, cause := range []error{io.EOF, errors.New("no route")} {
		n := roundTripper(func(*http.Request) (*http.Response, error) { return nil, cause })
		synctest.Test(t, func(t *testing.T) { // The client tries again.
			if got, err := listInto(t, n, "typed, JSON", metav1.ListOptions{}, all); !errors.Is(err, ErrNoAnswer) || !errors.Is(err, cause) || got.version != "" {
				t.Errorf("%v: version %q, %v", cause, got.version, err)
			}
		})
	}
}

// TestItemsThatAreNotSeen are not asked for: a watch that is not wrapped would bring all of them.
func TestItemsThatAreNotSeen(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the server got %s", r.URL) }))
	defer api.Close()
	open := openers(&rest.Config{Host: api.URL, QPS: -1})["typed, JSON"]
	_, err := Items(t.Context(), metav1.ListOptions{}, func(ctx context.Context) error {
		_, err := open(ctx)
		return err
	}, all)
	if !errors.Is(err, ErrNotSeen) {
		t.Error(err)
	}
}
