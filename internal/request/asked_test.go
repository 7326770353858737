package request

import (
	"net/http"
	"net/url"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestOfIsWhatTheRequestAsksFor(t *testing.T) {
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	const metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
	for _, c := range []struct {
		path, query, accept string
		want                Asked
	}{
		{"/api/v1/pods", "", "", Asked{Resource: pods}},
		{"/api/v1/namespaces/ns/pods", "resourceVersion=5&watch=true", "application/json", Asked{Resource: pods, Namespace: "ns"}},
		{"/api/v1/namespaces", "", "", Asked{Resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}}},
		{"/api/v1/namespaces/apis/pods", "", "", Asked{Resource: pods, Namespace: "apis"}},
		{"/api/v1/namespaces/api/pods", "", "", Asked{Resource: pods, Namespace: "api"}},
		{"/apis/apps/v1/deployments", "", "", Asked{Resource: deployments}},
		{"/apis/apps/v1/namespaces/ns/deployments/", "", "", Asked{Resource: deployments, Namespace: "ns"}},
		{"/k8s/clusters/c-1/api/v1/namespaces/ns/pods", "", "", Asked{Resource: pods, Namespace: "ns"}},
		{"/apis/proxy/v1/apis/apps/v1/deployments", "", "", Asked{Resource: deployments}},
		{"/gateway/apis/api/v1/pods", "", "", Asked{Resource: pods}},
		{"/gateway/apis/api/v1/namespaces/ns/pods", "", "", Asked{Resource: pods, Namespace: "ns"}},
		{"/gateway/apis/apis/apps/v1/namespaces/ns/deployments", "", "", Asked{Resource: deployments, Namespace: "ns"}},
		{"/api/v1/pods", "labelSelector=a%3D%3Dx,b+in+(y),c+notin+(z)", "", Asked{Resource: pods, LabelSelector: "a=x,b=y,c!=z"}},
		{"/api/v1/pods", "fieldSelector=a%3D%3Dx", "", Asked{Resource: pods, FieldSelector: "a=x"}},
		{"/api/v1/pods", "shardSelector=s", "", Asked{Resource: pods, ShardSelector: "s"}},
		{"/api/v1/pods", "", metadata, Asked{Resource: pods, Metadata: true}},
		{
			"/api/v1/pods", url.Values{"labelSelector": {"b in (y, x),a=1"}, "fieldSelector": {"status.phase!=Failed,spec.nodeName=n"}}.Encode(), "",
			Asked{Resource: pods, LabelSelector: "a=1,b in (x,y)", FieldSelector: "spec.nodeName=n,status.phase!=Failed"},
		},
	} {
		r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: c.path, RawQuery: c.query}, Header: http.Header{"Accept": {c.accept}}}
		if got, err := Of(r); err != nil || got != c.want {
			t.Errorf("%s?%s: %v, %v, expected %v", c.path, c.query, got, err, c.want)
		}
	}
}

func TestOfRefusesWhatIsNoList(t *testing.T) {
	for _, c := range []struct{ path, query string }{
		{"/version", ""}, {"", ""}, {"/api/v1", ""}, {"/api//pods", ""}, {"/apis/apps/v1", ""},
		{"/api/v1/namespaces/ns/pods/name", ""}, {"/api/v1/namespaces/kube-system", ""},
		{"/api/v1/namespaces/api/configmaps/settings", ""}, {"/apis/apps/v1/namespaces/api/deployments/name", ""},
		{"/api/v1/namespaces/apis/pods/name/log", ""}, {"/proxy/api/v1/namespaces/api/configmaps/settings", ""},
		{"/api/v1/pods", "labelSelector=a+in+("}, {"/api/v1/pods", "fieldSelector=~~"},
	} {
		r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: c.path, RawQuery: c.query}}
		if got, err := Of(r); err == nil {
			t.Errorf("%s?%s asks for %v", c.path, c.query, got)
		}
	}
}
