package request

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

var (
	configMapGVR = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	plain        = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	streaming    = protobuf.NewSerializerWithOptions(scheme.Scheme, scheme.Scheme, protobuf.SerializerOptions{StreamingCollectionsEncoding: true})
)

// A network answers requests, and writes them down.
type network struct {
	answer func(r *http.Request) *http.Response

	mu       sync.Mutex
	requests []string
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	n.requests = append(n.requests, r.URL.Path+"?"+r.URL.Query().Encode())
	n.mu.Unlock()
	return n.answer(r), nil
}

// taken returns the requests in order.
func (n *network) taken() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	slices.Sort(n.requests)
	return n.requests
}

func answer(code int, contentType string, body []byte) *http.Response {
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Header: http.Header{"Content-Type": {contentType}},
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}
}

func encode(t *testing.T, s runtime.Encoder, obj runtime.Object) []byte {
	t.Helper()
	b, err := runtime.Encode(s, obj)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// metadataOf returns a list with the metadata of n objects.
func metadataOf(n int, m metav1.ListMeta) *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{ListMeta: m}
	l.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList"))
	for i := range n {
		l.Items = append(l.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("o%d", i), UID: types.UID(fmt.Sprintf("u%d", i)), ResourceVersion: fmt.Sprint(100 + i),
			Generation: 7, Labels: map[string]string{"a": strings.Repeat("b", i)},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: metav1.NewFieldsV1("{}")}},
		}})
	}
	return l
}

func itemsOf(n int) (items []Item) {
	for i := range n {
		items = append(items, Item{"ns", fmt.Sprintf("o%d", i), fmt.Sprintf("u%d", i), fmt.Sprint(100 + i)})
	}
	return items
}

// listing returns a function that lists ConfigMaps by a client with this network.
func listing(t *testing.T, n http.RoundTripper, o metav1.ListOptions) func(context.Context) error {
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "https://server", Transport: n, QPS: -1})
	return func(ctx context.Context) error {
		list, err := client.CoreV1().ConfigMaps("").List(ctx, o)
		if err == nil {
			t.Errorf("the client got %d objects", len(list.Items))
		}
		return err
	}
}

func TestMetadataIsReadItemByItem(t *testing.T) {
	for name, s := range map[string]runtime.Encoder{"streamed": streaming, "at once": plain} {
		t.Run(name, func(t *testing.T) {
			n := &network{answer: func(r *http.Request) *http.Response {
				if got := r.Header.Get("Accept"); got != acceptMetadata {
					t.Errorf("accepts %q", got)
				}
				left := int64(3)
				if r.URL.Query().Get("continue") == "" {
					return answer(200, runtime.ContentTypeProtobuf, encode(t, s, metadataOf(2, metav1.ListMeta{ResourceVersion: "200", Continue: "c", RemainingItemCount: &left})))
				}
				l := metadataOf(5, metav1.ListMeta{ResourceVersion: "200"})
				l.Items = l.Items[2:]
				return answer(200, runtime.ContentTypeProtobuf, encode(t, s, l))
			}}
			var got []Item
			rv, err := Metadata(t.Context(), listing(t, Transport{RoundTripper: n}, metav1.ListOptions{ResourceVersion: "7", ResourceVersionMatch: "NotOlderThan", LabelSelector: "x"}),
				func(i Item) error { got = append(got, i); return nil })
			if err != nil || rv != "200" {
				t.Errorf("version %q, %v", rv, err)
			}
			if d := cmp.Diff(itemsOf(5), got); d != "" {
				t.Error(d)
			}
			want := []string{
				"/api/v1/configmaps?continue=c&labelSelector=x",
				"/api/v1/configmaps?labelSelector=x&resourceVersion=7&resourceVersionMatch=NotOlderThan",
			}
			if d := cmp.Diff(want, n.taken()); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestMetadataThatIsCut anywhere is an error, because what is missing would be taken for deleted.
func TestMetadataThatIsCut(t *testing.T) {
	for _, s := range []runtime.Encoder{streaming, plain} {
		whole := encode(t, s, metadataOf(3, metav1.ListMeta{ResourceVersion: "200"}))
		for n := range whole {
			items := 0
			cut := &network{answer: func(*http.Request) *http.Response { return answer(200, runtime.ContentTypeProtobuf, whole[:n]) }}
			_, err := Metadata(t.Context(), listing(t, Transport{RoundTripper: cut}, metav1.ListOptions{}), func(Item) error { items++; return nil })
			if err == nil && items != 3 { // What comes behind the items says nothing.
				t.Errorf("%d of %d bytes are a list of %d objects", n, len(whole), items)
			}
		}
	}
}

// TestTransportsInARow: a configuration may be wrapped for two Caches. The first takes the request,
// and the others send it as it is then, whatever the check of the list says of it.
func TestTransportsInARow(t *testing.T) {
	n := store(t, plain, runtime.ContentTypeProtobuf)
	objects := n.answer
	n.answer = func(r *http.Request) *http.Response {
		if r.Header.Get("Accept") == acceptMetadata {
			return answer(200, runtime.ContentTypeProtobuf, encode(t, plain, metadataOf(3, metav1.ListMeta{ResourceVersion: "200"})))
		}
		return objects(r)
	}
	ctx := WithCheck(t.Context(), func(a Asked) error {
		if want := (Asked{Resource: configMapGVR}); a != want {
			return fmt.Errorf("asks for %v", a)
		}
		return nil
	})
	row := Transport{RoundTripper: Transport{RoundTripper: n}}
	seen := 0
	rv, err := Metadata(ctx, listing(t, row, metav1.ListOptions{}), func(Item) error { seen++; return nil })
	if err != nil || rv != "200" || seen != 3 {
		t.Errorf("version %q, %v, %d objects", rv, err, seen)
	}
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "https://server", Transport: row, QPS: -1})
	err = Objects(ctx, metav1.ListOptions{}, itemsOf(3), func(ctx context.Context) error {
		l, err := client.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{})
		if err == nil && len(l.Items) != 3 {
			t.Errorf("%d objects", len(l.Items))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestMetadataIsReadOnce, whatever repeats requests: what was in the one answer and is not in the
// next must not count as there.
func TestMetadataIsReadOnce(t *testing.T) {
	refused := answer(403, "application/json", []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))
	for name, second := range map[string]*http.Response{
		"a page is refused":            refused,
		"a page is of another version": answer(200, runtime.ContentTypeProtobuf, encode(t, plain, metadataOf(0, metav1.ListMeta{ResourceVersion: "201"}))),
	} {
		t.Run(name, func(t *testing.T) {
			n := &network{answer: func(r *http.Request) *http.Response {
				if r.URL.Query().Get("continue") != "" {
					return second
				}
				return answer(200, runtime.ContentTypeProtobuf, encode(t, plain, metadataOf(2, metav1.ListMeta{ResourceVersion: "200", Continue: "c"})))
			}}
			again := roundTripper(func(r *http.Request) (*http.Response, error) {
				resp, err := Transport{RoundTripper: n}.RoundTrip(r)
				if err != nil {
					resp, err = Transport{RoundTripper: n}.RoundTrip(r)
				}
				return resp, err
			})
			seen := 0
			rv, err := Metadata(t.Context(), listing(t, again, metav1.ListOptions{}), func(Item) error { seen++; return nil })
			if err == nil || seen != 2 || len(n.taken()) != 2 {
				t.Errorf("version %q, %v, %d objects, asked for %v", rv, err, seen, n.taken())
			}
		})
	}
}

// TestACallThatReturnsEarly: nothing is read behind its back.
func TestACallThatReturnsEarly(t *testing.T) {
	reading, ended := make(chan struct{}), false
	n := roundTripper(func(r *http.Request) (*http.Response, error) {
		close(reading)
		<-r.Context().Done()
		ended = true
		return nil, r.Context().Err()
	})
	early := errors.New("early")
	_, err := Metadata(t.Context(), func(ctx context.Context) error {
		go func() { _ = listing(t, Transport{RoundTripper: n}, metav1.ListOptions{})(ctx) }()
		<-reading
		return early
	}, func(Item) error { return nil })
	if !errors.Is(err, early) || !ended {
		t.Errorf("%v, ended %t", err, ended)
	}
}

func TestMetadataThatCannotBeHad(t *testing.T) {
	whole := encode(t, plain, metadataOf(3, metav1.ListMeta{ResourceVersion: "200"}))
	mine := errors.New("mine")
	for name, c := range map[string]struct {
		answer *http.Response
		each   error
		is     func(error) bool
	}{
		"JSON":         {answer: answer(200, "application/json", []byte(`{"items":[]}`)), is: func(err error) bool { return errors.Is(err, ErrUnsupported) }},
		"whole list":   {answer: answer(200, runtime.ContentTypeProtobuf, encode(t, plain, typed(&corev1.ConfigMapList{}))), is: func(err error) bool { return errors.Is(err, ErrUnsupported) }},
		"other prefix": {answer: answer(200, runtime.ContentTypeProtobuf, []byte("k8x\x00")), is: func(err error) bool { return errors.Is(err, errMalformed) }},
		"too old":      {answer: answer(410, "application/json", []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`)), is: apierrors.IsResourceExpired},
		"not allowed":  {answer: answer(403, "application/json", []byte(`{"kind":"Status","apiVersion":"v1","reason":"Forbidden","code":403}`)), is: apierrors.IsForbidden},
		"an error of the caller": {
			answer: answer(200, runtime.ContentTypeProtobuf, whole), each: mine, is: func(err error) bool { return errors.Is(err, mine) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := &network{answer: func(*http.Request) *http.Response { return c.answer }}
			_, err := Metadata(t.Context(), listing(t, Transport{RoundTripper: n}, metav1.ListOptions{}), func(Item) error { return c.each })
			if !c.is(err) {
				t.Error(err)
			}
		})
	}
}

// TestAnExchangeThatIsNotSeen does not come to the server, and no answer is made up.
func TestAnExchangeThatIsNotSeen(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the server got %s", r.URL) }))
	defer api.Close()
	n := &network{answer: func(*http.Request) *http.Response {
		return answer(200, runtime.ContentTypeProtobuf, encode(t, plain, metadataOf(1, metav1.ListMeta{ResourceVersion: "1"})))
	}}
	for name, list := range map[string]func(context.Context) error{
		"no request": func(context.Context) error { return nil },
		"an answer made of the error": func(ctx context.Context) error {
			_ = listing(t, Transport{RoundTripper: n}, metav1.ListOptions{})(ctx)
			return nil
		},
		"not wrapped": func(ctx context.Context) error {
			_, err := kubernetes.NewForConfigOrDie(&rest.Config{Host: api.URL, QPS: -1}).CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			rv, err := Metadata(t.Context(), list, func(Item) error { return nil })
			if rv != "" || !errors.Is(err, ErrNotSeen) {
				t.Errorf("version %q, %v", rv, err)
			}
		})
	}
}

func typed[L runtime.Object](l L) L {
	gvks, _, _ := scheme.Scheme.ObjectKinds(l)
	l.GetObjectKind().SetGroupVersionKind(gvks[0])
	return l
}

// store answers each list by name with the object, in JSON or protobuf.
func store(t *testing.T, s runtime.Encoder, contentType string) *network {
	return &network{answer: func(r *http.Request) *http.Response {
		l := typed(&corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "300"}})
		for term := range strings.SplitSeq(r.URL.Query().Get("fieldSelector"), ",") {
			if name, ok := strings.CutPrefix(term, "metadata.name="); ok && name != "gone" {
				l.Items = []corev1.ConfigMap{{
					TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string]string{"of": name},
				}}
			}
		}
		return answer(200, contentType, encode(t, s, l))
	}}
}

func TestObjectsComeInOneList(t *testing.T) {
	items := []Item{{Namespace: "ns", Name: "gone"}}
	var want []string
	for i := range 20 {
		name := fmt.Sprintf("o%02d", i)
		items, want = append(items, Item{Namespace: "ns", Name: name}), append(want, "ns/"+name)
	}
	o := metav1.ListOptions{ResourceVersion: "7", ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	check := func(t *testing.T, got []string, err error, n *network) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		requests := n.taken()
		const first = "/api/v1/configmaps?fieldSelector=a%3Db%2Cmetadata.name%3Dgone%2Cmetadata.namespace%3Dns&labelSelector=l&resourceVersion=7&resourceVersionMatch=Exact"
		if len(requests) != len(items) || requests[0] != first {
			t.Errorf("%d requests, the first is %s", len(requests), requests[0])
		}
	}
	all := metav1.ListOptions{FieldSelector: "a=b", LabelSelector: "l", Limit: 5, ResourceVersion: "3"}
	for name, s := range map[string]struct {
		runtime.Encoder
		contentType string
	}{
		"protobuf": {plain, runtime.ContentTypeProtobuf},
		"JSON":     {scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion), "application/json"},
	} {
		t.Run("typed, "+name, func(t *testing.T) {
			n := store(t, s, s.contentType)
			client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "https://server", Transport: Transport{RoundTripper: n}, QPS: -1})
			var got []string
			err := Objects(t.Context(), o, items, func(ctx context.Context) error {
				l, err := client.CoreV1().ConfigMaps("").List(ctx, all)
				for _, c := range l.Items {
					got = append(got, c.Namespace+"/"+c.Data["of"])
				}
				return err
			})
			check(t, got, err, n)
		})
	}
	t.Run("dynamic", func(t *testing.T) {
		n := store(t, scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion), "application/json")
		client := dynamic.NewForConfigOrDie(&rest.Config{Host: "https://server", Transport: Transport{RoundTripper: n}, QPS: -1})
		var got []string
		err := Objects(t.Context(), o, items, func(ctx context.Context) error {
			l, err := client.Resource(configMapGVR).List(ctx, all)
			if err != nil {
				return err
			}
			for _, c := range l.Items {
				of, _, _ := unstructured.NestedString(c.Object, "data", "of")
				got = append(got, c.GetNamespace()+"/"+of)
			}
			return nil
		})
		check(t, got, err, n)
	})
}

// TestOneObjectThatIsRefused is an error, and no list without it.
// TestACallThatListsTwice asks for something that one answer does not stand for, whatever it makes of
// the error.
func TestACallThatListsTwice(t *testing.T) {
	n := store(t, plain, runtime.ContentTypeProtobuf)
	list := kubernetes.NewForConfigOrDie(&rest.Config{Host: "https://server", Transport: Transport{RoundTripper: n}, QPS: -1}).CoreV1().ConfigMaps("").List
	err := Objects(t.Context(), metav1.ListOptions{ResourceVersion: "1"}, itemsOf(1), func(ctx context.Context) error {
		if l, err := list(ctx, metav1.ListOptions{}); err != nil || len(l.Items) != 1 {
			t.Errorf("the first list: %v, %v", l, err)
		}
		_, _ = list(ctx, metav1.ListOptions{})
		return nil
	})
	if got := n.taken(); !errors.Is(err, errMore) || len(got) != 1 {
		t.Errorf("%v, asked for %q", err, got)
	}
}

func TestOneObjectThatIsRefused(t *testing.T) {
	n := store(t, plain, runtime.ContentTypeProtobuf)
	good := n.answer
	n.answer = func(r *http.Request) *http.Response {
		if strings.Contains(r.URL.Query().Get("fieldSelector"), "metadata.name=o5") {
			return answer(403, "application/json", []byte(`{"kind":"Status","apiVersion":"v1","reason":"Forbidden","code":403}`))
		}
		return good(r)
	}
	if err := Objects(t.Context(), metav1.ListOptions{}, itemsOf(50), listing(t, Transport{RoundTripper: n}, metav1.ListOptions{})); !apierrors.IsForbidden(err) {
		t.Error(err)
	}
}

// TestOneObjectThatIsPutOff is asked for again, and no other is.
func TestOneObjectThatIsPutOff(t *testing.T) {
	n := store(t, plain, runtime.ContentTypeProtobuf)
	good := n.answer
	var late atomic.Bool
	n.answer = func(r *http.Request) *http.Response {
		resp := good(r)
		if strings.HasSuffix(r.URL.Query().Get("fieldSelector"), "metadata.name=o5,metadata.namespace=ns") && !late.Swap(true) {
			resp = answer(429, "text/plain", nil)
			resp.Header.Set("Retry-After", "0")
		}
		return resp
	}
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "https://server", Transport: Transport{RoundTripper: n}, QPS: -1})
	err := Objects(t.Context(), metav1.ListOptions{}, itemsOf(50), func(ctx context.Context) error {
		l, err := client.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{})
		if len(l.Items) != 50 {
			t.Errorf("%d objects", len(l.Items))
		}
		return err
	})
	if got := len(n.taken()); err != nil || got != 51 {
		t.Errorf("%v, %d requests", err, got)
	}
}

func TestSchemasAreHashesOfTheServers(t *testing.T) {
	n := &network{answer: func(*http.Request) *http.Response {
		return answer(200, "text/plain; charset=utf-8", []byte(`{"paths":{
			"api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=A"},
			"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=B"},
			"apis/batch/v1":{"serverRelativeURL":"/openapi/v3/apis/batch/v1"}}}`))
	}}
	hashes := map[string]bool{}
	for path, known := range map[string]bool{"/api/v1/pods": true, "/api/v1/secrets": true, "/x/apis/apps/v1/deployments": true, "/apis/batch/v1/jobs": false} {
		seen, err := Look(t.Context(), func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://server"+path+"?limit=1", nil)
			if err != nil {
				return err
			}
			_, err = Transport{RoundTripper: n}.RoundTrip(r) //nolint:bodyclose // There is none.
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		schemas, err := seen.Schemas(t.Context())
		if hash, ok := schemas[seen.GroupVersionPath()]; err != nil || ok != known {
			t.Errorf("%s has the schema %q, %v", path, hash, err)
		} else {
			hashes[hash] = true
		}
	}
	if len(hashes) != 3 { // api/v1, apis/apps/v1, and none.
		t.Errorf("schemas: %v", hashes)
	}
	want := []string{"/openapi/v3?", "/openapi/v3?", "/openapi/v3?", "/x/openapi/v3?"}
	if d := cmp.Diff(want, n.taken()); d != "" {
		t.Error(d)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAWrapperThatDecompresses what it has asked for itself is above the Transport, which reads lists.
func TestAWrapperThatDecompresses(t *testing.T) {
	for name, accepted := range map[string]string{"gzip": "", "identity": "identity"} {
		t.Run(name, func(t *testing.T) {
			n := &network{answer: func(r *http.Request) *http.Response {
				if got := r.Header.Get("Accept-Encoding"); got != accepted {
					t.Errorf("it accepts %q, expected %q", got, accepted)
				}
				return answer(200, runtime.ContentTypeProtobuf, encode(t, plain, configMapsOf(0, 2, metav1.ListMeta{ResourceVersion: "200"})))
			}}
			config := &rest.Config{Host: "https://server", Transport: Transport{RoundTripper: n}, QPS: -1}
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					r = r.Clone(r.Context())
					r.Header.Set("Accept-Encoding", name)
					return next.RoundTrip(r)
				})
			})
			open := openers(config)["typed, protobuf"]
			var got watched
			_, err := Items(t.Context(), metav1.ListOptions{}, func(ctx context.Context) error {
				w, err := open(ctx)
				if err != nil {
					return err
				}
				return got.read(w)
			}, all)
			if err != nil || len(got.objects) != 2 {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}
