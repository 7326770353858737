package storm_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Accept, Close and Addr implement [net.Listener].
func (s *wildServer) Accept() (net.Conn, error) {
	select {
	case c := <-s.pipes:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *wildServer) Close() error   { return nil }
func (s *wildServer) Addr() net.Addr { return &net.UnixAddr{} }

// config is for clients, which use the transport.
func (s *wildServer) config() (*rest.Config, *http.Transport) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		client, server := net.Pipe()
		select {
		case s.pipes <- server:
			return client, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.closed:
			return nil, net.ErrClosed
		}
	}}
	return &rest.Config{Host: "http://server", QPS: -1, Transport: transport}, transport
}

// wildRequest is a request, and what it gets.
type wildRequest struct {
	*wildServer
	w      http.ResponseWriter
	r      *http.Request
	member wildMember
	fault  fault
	sent   int // Bytes of a watch.

	what            string // It asks for.
	options         metav1.ListOptions
	name, namespace string // Of the one object that is asked for.
}

var oneField = regexp.MustCompile(`metadata\.(name|namespace)=([^,]+)`)

// ServeHTTP implements [http.Handler].
func (s *wildServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := &wildRequest{wildServer: s, w: w, r: r}
	q.parse()
	s.mu.Lock()
	q.member, q.fault = s.members[s.rng.IntN(len(s.members))], s.faultLocked()
	s.asked[q.what]++
	s.mu.Unlock()
	if q.fault.delay > 0 {
		select {
		case <-time.After(q.fault.delay):
		case <-r.Context().Done():
			return
		}
	}
	switch {
	case q.fault.code != 0:
		q.refuse(q.fault.code, "")
	case q.what == "schema":
		q.send("application/json", fmt.Appendf(nil, `{"paths":{"api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=%d"}}}`, q.member.schema+1))
	case q.what == "cluster":
		q.send("application/json", []byte(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"cluster"}}`))
	case q.what == "watch":
		q.watch()
	default:
		q.list()
	}
}

func (q *wildRequest) parse() {
	query := q.r.URL.Query()
	q.options = metav1.ListOptions{
		ResourceVersion: query.Get("resourceVersion"), ResourceVersionMatch: metav1.ResourceVersionMatch(query.Get("resourceVersionMatch")),
		Continue: query.Get("continue"),
	}
	q.options.Limit, _ = strconv.ParseInt(query.Get("limit"), 10, 64) // None is 0.
	for _, field := range oneField.FindAllStringSubmatch(query.Get("fieldSelector"), -1) {
		if field[1] == "name" {
			q.name = field[2]
		} else {
			q.namespace = field[2]
		}
	}
	switch {
	case q.r.URL.Path == "/openapi/v3":
		q.what = "schema"
	case strings.HasSuffix(q.r.URL.Path, "/kube-system"):
		q.what = "cluster"
	case query.Get("watch") != "":
		q.what = "watch"
	case q.options.Limit == 1:
		q.what = "probe"
	case strings.Contains(q.r.Header.Get("Accept"), "PartialObjectMetadataList"):
		q.what = "metadata"
	case q.name != "":
		q.what = "one"
	case q.options.Continue != "":
		q.what = "page"
	default:
		q.what = "list"
	}
	if selector := query.Get("labelSelector"); selector != stormSelector && q.what != "schema" && q.what != "cluster" {
		q.t.Errorf("%s is for the selector %q", q.r.URL, selector)
	}
}

func status(code int) metav1.Status {
	reasons := map[int]metav1.StatusReason{
		403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound, 410: metav1.StatusReasonExpired,
		429: metav1.StatusReasonTooManyRequests, 504: metav1.StatusReasonTimeout,
	}
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reasons[code], Message: "storm", //nolint:gosec // It is a small number.
	}
}

func (q *wildRequest) refuse(code int, cause metav1.CauseType) {
	refusal := status(code)
	if cause != "" {
		refusal.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: cause}}, RetryAfterSeconds: 1}
	}
	if code == http.StatusTooManyRequests {
		q.w.Header().Set("Retry-After", "1")
	}
	q.w.Header().Set("Content-Type", "application/json")
	q.w.WriteHeader(code)
	_ = json.NewEncoder(q.w).Encode(refusal) // The client may have gone.
}

// send sends an answer, compressed if it is long, or a part of it.
func (q *wildRequest) send(contentType string, body []byte) {
	q.w.Header().Set("Content-Type", contentType)
	if strings.Contains(q.r.Header.Get("Accept-Encoding"), "gzip") && len(body) > 1000 {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(body)
		_ = z.Close()
		body = b.Bytes()
		q.w.Header().Set("Content-Encoding", "gzip")
	}
	if q.fault.cut > 0 {
		q.change(func(s *wildServer) { s.asked["cut"]++ })
		body = body[:len(body)*q.fault.cut/1001]
	}
	_, _ = q.w.Write(body) // The client may have gone.
	if q.fault.cut > 0 && !q.fault.clean {
		q.w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

// versionLocked returns the version of a list, or why there is none. Only an answer that is not below
// the store's version is no proof of another history, so none of a probe is.
func (q *wildRequest) versionLocked() (version, code int, cause metav1.CauseType) {
	head := len(q.events)
	asked, _ := strconv.Atoi(q.options.ResourceVersion) // "" is 0.
	switch {
	case q.options.Continue != "":
		number, _, _ := strings.Cut(q.options.Continue, " ")
		if version, _ = strconv.Atoi(number); version < q.lostOld {
			return 0, http.StatusGone, ""
		}
		return version, 0, ""
	case q.options.ResourceVersion == "":
		return head, 0, ""
	case q.options.ResourceVersionMatch == metav1.ResourceVersionMatchExact && asked < q.lostOld:
		return 0, http.StatusGone, ""
	case q.options.ResourceVersionMatch == metav1.ResourceVersionMatchExact && asked <= head:
		return asked, 0, ""
	case asked > head-q.member.behind:
		return 0, http.StatusGatewayTimeout, metav1.CauseTypeResourceVersionTooLarge
	case q.what == "probe":
		return head - q.member.behind, 0, ""
	}
	return max(1, head-q.member.behind-q.fault.behind), 0, ""
}

func (q *wildRequest) list() {
	q.mu.Lock()
	version, code, cause := q.versionLocked()
	all := q.objectsLocked(version)
	q.mu.Unlock()
	if code != 0 {
		q.refuse(code, cause)
		return
	}
	listed := metav1.ListMeta{ResourceVersion: strconv.Itoa(version)}
	_, from, _ := strings.Cut(q.options.Continue, " ")
	var objects []corev1.ConfigMap
	for _, cm := range all {
		if q.name != "" && q.name != cm.Name || q.namespace != "" && q.namespace != cm.Namespace || cm.Namespace+"/"+cm.Name <= from {
			continue
		}
		if n := len(objects); q.options.Limit > 0 && q.options.ResourceVersion != "0" && n == int(q.options.Limit) {
			listed.Continue = fmt.Sprintf("%d %s/%s", version, objects[n-1].Namespace, objects[n-1].Name)
			break
		}
		objects = append(objects, *q.member.read(cm))
	}
	if q.what != "metadata" {
		q.sendObject(&corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}, ListMeta: listed, Items: objects})
		return
	}
	l := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}, ListMeta: listed}
	for i := range objects {
		l.Items = append(l.Items, metav1.PartialObjectMetadata{ObjectMeta: objects[i].ObjectMeta})
	}
	q.sendObject(l)
}

func (q *wildRequest) sendObject(obj runtime.Object) {
	var b bytes.Buffer
	contentType, err := "application/json", error(nil)
	if strings.Contains(q.r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		contentType = runtime.ContentTypeProtobuf
		err = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(obj, &b)
	} else {
		err = json.NewEncoder(&b).Encode(obj)
	}
	if err != nil {
		q.t.Error(err)
	}
	q.send(contentType, b.Bytes())
}

// watch sends events, from those that have been to those that come.
func (q *wildRequest) watch() {
	from, _ := strconv.Atoi(q.options.ResourceVersion) // "" is 0.
	q.mu.Lock()
	head, ended := len(q.events), q.ended
	at := max(1, head-q.member.behind)
	if q.options.ResourceVersion == "" {
		at = head
	}
	expired := from > 0 && from < q.lost
	late := q.rng.IntN(2) == 0
	if expired {
		q.asked["expired"]++
	}
	objects := q.objectsLocked(at)
	q.mu.Unlock()
	if expired && !late {
		q.refuse(http.StatusGone, "")
		return
	}
	q.w.Header().Set("Content-Type", "application/json")
	q.w.WriteHeader(http.StatusOK)
	q.w.(http.Flusher).Flush()
	if expired {
		q.event("ERROR", status(http.StatusGone))
		return
	}
	if from == 0 {
		for _, cm := range objects {
			q.event("ADDED", q.member.read(cm))
		}
		from = at
	}
	q.follow(from, ended)
}

// follow sends what comes after a version, until the watch ends.
func (q *wildRequest) follow(from int, ended chan struct{}) {
	bookmarks := time.NewTicker(time.Minute)
	defer bookmarks.Stop()
	end := time.NewTimer(time.Duration(5+q.random(5)) * time.Minute)
	defer end.Stop()
	for {
		var events []wildEvent
		q.mu.Lock()
		to := len(q.events)
		if q.storms {
			to -= q.member.behind
		}
		if from < to {
			events = q.events[from:to]
		}
		changed := q.changed
		q.mu.Unlock()
		for _, e := range events {
			from++
			q.changeEvent(e, from)
		}
		select {
		case <-changed:
			time.Sleep(time.Duration(q.random(50)) * time.Millisecond)
		case <-bookmarks.C:
			q.bookmark(from)
		case <-end.C:
			return
		case <-ended:
			return
		case <-q.closed:
			return
		case <-q.r.Context().Done():
			return
		}
	}
}

// changeEvent sends a change to those who have selected the object, before or now.
func (q *wildRequest) changeEvent(e wildEvent, version int) {
	switch was, is := isSelected(e.before), isSelected(e.now); {
	case is && was:
		q.event("MODIFIED", q.member.read(e.now))
	case is:
		q.event("ADDED", q.member.read(e.now))
	case was:
		gone := q.member.read(e.before)
		gone.ResourceVersion = strconv.Itoa(version)
		q.event("DELETED", gone)
	}
}

func (q *wildRequest) bookmark(version int) {
	q.event("BOOKMARK", &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(version)},
	})
}

func (q *wildRequest) event(what string, object any) {
	b, err := json.Marshal(map[string]any{"type": what, "object": object})
	if err != nil {
		q.t.Error(err)
	}
	left, isCut := 100*q.fault.cut-q.sent, false
	if b = append(b, '\n'); q.fault.cut > 0 && left < len(b) {
		b, isCut = b[:left], true
	}
	q.sent += len(b)
	_, _ = q.w.Write(b) // The client may have gone.
	q.w.(http.Flusher).Flush()
	if isCut {
		panic(http.ErrAbortHandler)
	}
}

func (s *wildServer) random(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.IntN(n)
}
