package httpserver

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

// A World is what a Server has of ConfigMaps, all in one namespace. It answers in protobuf where
// that is accepted. Its requests are written down as
//
//	all                  a list of all objects, or a page of it
//	metadata             of the metadata of all
//	o1, o1 exact         of one object, by its name
//	probe                of at most one
//	watch, schema
type World struct {
	Version int                          // Of lists. A watch at another version has expired.
	Objects map[string]*corev1.ConfigMap // By name.
	Schema  string                       // The hash of the server's schema. Empty: it may not be read.
	// Since has newer versions of objects, which lists of one object that are not exact return.
	Since map[string]*corev1.ConfigMap
	// NoSelectors: a list of one object has all of them.
	NoSelectors bool
	// Meddle, if set, may answer a request in another way. It reports whether it has.
	Meddle func(name string, w http.ResponseWriter) bool
}

// Change changes the World that the Server has from now on.
func (s *Server) Change(change func(w *World)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.world == nil {
		s.world = &World{Objects: map[string]*corev1.ConfigMap{}, Since: map[string]*corev1.ConfigMap{}}
	}
	change(s.world)
}

// Put adds an object, or changes it.
func (w *World) Put(name, uid, data string) {
	w.Version++
	w.Objects[name] = &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: fmt.Sprint(w.Version),
		},
		Data: map[string]string{"data": data},
	}
}

// Delete removes an object.
func (w *World) Delete(name string) {
	w.Version++
	delete(w.Objects, name)
}

var oneName = regexp.MustCompile(`metadata\.name=([^,]+)`)

func (w *World) name(r *http.Request, name string) string {
	query := r.URL.Query()
	one := oneName.FindStringSubmatch(query.Get("fieldSelector"))
	switch {
	case strings.HasSuffix(r.URL.Path, "/openapi/v3"):
		return "schema"
	case !strings.HasSuffix(r.URL.Path, "/configmaps"):
		return name
	case query.Get("watch") != "":
		return "watch"
	case query.Get("limit") == "1":
		return "probe"
	case one != nil && query.Get("resourceVersionMatch") == "Exact":
		return one[1] + " exact"
	case one != nil:
		return one[1]
	case strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList"):
		return "metadata"
	}
	return "all"
}

// answer is called while Server.mu is held, which it releases for a watch.
func (w *World) answer(s *Server, rw http.ResponseWriter, r *http.Request) {
	name := w.name(r, "")
	if w.Meddle != nil && w.Meddle(name, rw) {
		return
	}
	switch name {
	case "schema":
		if w.Schema == "" {
			rw.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprintf(rw, `{"paths":{"api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=%s"}}}`, w.Schema)
	case "watch":
		w.watch(s, rw, r)
	case "metadata":
		w.send(rw, r, w.metadata())
	default:
		list := w.list(name)
		if name == "all" {
			page(list, r.URL.Query())
		}
		w.send(rw, r, list)
	}
}

// page leaves what is asked for of a list, by a limit.
func page(l *corev1.ConfigMapList, query url.Values) {
	from, _ := strconv.Atoi(query.Get("continue")) // The first page has no number.
	limit, err := strconv.Atoi(query.Get("limit"))
	if to := from + limit; err == nil && to < len(l.Items) {
		l.Items, l.Continue = l.Items[:to], strconv.Itoa(to)
	}
	l.Items = l.Items[min(from, len(l.Items)):]
}

func (w *World) watch(s *Server, rw http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("resourceVersion") != fmt.Sprint(w.Version) {
		rw.WriteHeader(http.StatusGone)
		encode(rw, metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonExpired, Code: http.StatusGone, Message: "too old",
		})
		return
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	rw.(http.Flusher).Flush()
	<-r.Context().Done()
}

func (w *World) sorted() []*corev1.ConfigMap {
	return slices.SortedFunc(maps.Values(w.Objects), func(a, b *corev1.ConfigMap) int { return cmp.Compare(a.Name, b.Name) })
}

func (w *World) list(name string) *corev1.ConfigMapList {
	l := &corev1.ConfigMapList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"},
		ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(w.Version)},
	}
	for _, o := range w.sorted() {
		only, exact := strings.CutSuffix(name, " exact")
		if newer := w.Since[o.Name]; newer != nil && only == o.Name && !exact {
			o = newer
		}
		if name == "all" || w.NoSelectors && name != "probe" || only == o.Name || name == "probe" && len(l.Items) == 0 {
			l.Items = append(l.Items, *o)
		}
	}
	return l
}

func (w *World) metadata() *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
		ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(w.Version)},
	}
	for _, o := range w.sorted() {
		l.Items = append(l.Items, metav1.PartialObjectMetadata{ObjectMeta: o.ObjectMeta})
	}
	return l
}

func (w *World) send(rw http.ResponseWriter, r *http.Request, list runtime.Object) {
	if !strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		encode(rw, list)
		return
	}
	rw.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_ = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, rw) // The client may have gone.
}
