package workload

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Gadgets is the custom resource of DefineGadgets.
var Gadgets = schema.GroupVersionResource{Group: "workload.example.com", Version: "v1", Resource: "gadgets"}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Clients writes objects of this package, as fast as the server takes them. It is
// safe for concurrent use.
type Clients struct {
	Varied  bool // Objects have as little in common as those of a real cluster.
	typed   kubernetes.Interface
	dynamic dynamic.Interface
}

// NewClients returns clients for cfg, without its limits.
func NewClients(cfg *rest.Config) (*Clients, error) {
	cfg = unlimited(cfg)
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	untyped, err := dynamic.NewForConfig(cfg)
	return &Clients{typed: typed, dynamic: untyped}, err
}

// CreateNamespace is fine with one that exists.
func (c *Clients) CreateNamespace(ctx context.Context, name string) error {
	_, err := c.typed.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// DefineGadgets makes the API server serve gadgets, and returns when it does.
func (c *Clients) DefineGadgets(ctx context.Context) error {
	_, err := c.dynamic.Resource(definitions).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": Gadgets.GroupResource().String()},
		"spec": map[string]any{
			"group": Gadgets.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
			"versions": []any{map[string]any{
				"name": Gadgets.Version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for {
		_, err = c.dynamic.Resource(Gadgets).List(ctx, metav1.ListOptions{Limit: 1})
		if !apierrors.IsNotFound(err) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// AwaitWatchCache returns when the API server answers from its memory, as it does
// some time after its start.
func (c *Clients) AwaitWatchCache(ctx context.Context, resource schema.GroupVersionResource) error {
	// Version 0 is what is in memory, and nothing has this label.
	nothing := metav1.ListOptions{ResourceVersion: "0", LabelSelector: "app=none-of-them"}
	for {
		_, err := c.dynamic.Resource(resource).List(ctx, nothing)
		if !apierrors.IsTooManyRequests(err) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Create makes the i-th Pod, ConfigMap or gadget.
func (c *Clients) Create(ctx context.Context, resource schema.GroupVersionResource, namespace string, i int) error {
	var err error
	switch {
	case c.Varied:
		err = c.createVaried(ctx, resource, namespace, i)
	case resource.Resource == "pods":
		pod := Pod(i)
		pod.ManagedFields = nil
		_, err = c.typed.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	case resource.Resource == "configmaps":
		_, err = c.typed.CoreV1().ConfigMaps(namespace).Create(ctx, ConfigMap(i), metav1.CreateOptions{})
	default:
		_, err = c.dynamic.Resource(Gadgets).Namespace(namespace).Create(ctx, Gadget(i), metav1.CreateOptions{})
	}
	return err
}

// Annotate gives the i-th Pod, ConfigMap or gadget one annotation. Of Pods and
// ConfigMaps that are not varied other annotations are gone then: a PUT takes the
// server half the time of a PATCH.
func (c *Clients) Annotate(ctx context.Context, resource schema.GroupVersionResource, namespace string, i int, name, value string) error {
	annotations := map[string]string{name: value}
	object := Gadget(i).GetName()
	switch {
	case c.Varied:
		object = variedMeta(resource.Resource, i).Name
	case resource.Resource == "pods":
		pod := Pod(i)
		pod.ManagedFields, pod.Annotations = nil, annotations
		_, err := c.typed.CoreV1().Pods(namespace).Update(ctx, pod, metav1.UpdateOptions{})
		return err
	case resource.Resource == "configmaps":
		configMap := ConfigMap(i)
		configMap.Annotations = annotations
		_, err := c.typed.CoreV1().ConfigMaps(namespace).Update(ctx, configMap, metav1.UpdateOptions{})
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err == nil {
		_, err = c.dynamic.Resource(resource).Namespace(namespace).Patch(ctx, object, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return err
}

// Compression says how many times smaller the API server's gzip makes a list of 1,000 objects.
func (c *Clients) Compression(ctx context.Context, resource schema.GroupVersionResource, namespace string) (float64, error) {
	path := "/apis/" + resource.Group
	if resource.Group == "" {
		path = "/api"
	}
	list, err := c.typed.Discovery().RESTClient().Get().AbsPath(path, resource.Version, "namespaces", namespace, resource.Resource).
		Param("limit", "1000").SetHeader("Accept", runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON).DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	var compressed bytes.Buffer
	w, err := gzip.NewWriterLevel(&compressed, gzip.BestSpeed) // As in apiserver, endpoints/handlers/responsewriters.
	if err != nil {
		return 0, err
	}
	_, err = w.Write(list)
	err = errors.Join(err, w.Close())
	return float64(len(list)) / float64(compressed.Len()), err
}

// ConfigMap returns the i-th of many different ConfigMaps of 16 KB.
func ConfigMap(i int) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprintf("config-%05x", i),
			Labels: map[string]string{"app": fmt.Sprintf("app-%04d", i/PodsPerApp)},
		},
		Data: map[string]string{
			"application.yaml": prose(i, 12_000),
			"logging.yaml":     prose(i+1, 3_500),
		},
	}
}

// Gadget returns the i-th of many different custom resources. Stored, they take
// 2.2 KB of JSON.
func Gadget(i int) *unstructured.Unstructured {
	app := fmt.Sprintf("app-%04d", i/PodsPerApp)
	var endpoints []any
	for n := range 8 {
		endpoints = append(endpoints, map[string]any{
			"address": fmt.Sprintf("10.%d.%d.%d", i>>8&255, i&255, n), "port": int64(8000 + n), "weight": 0.5 * float64(n), "ready": n%2 == 0,
		})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": Gadgets.GroupVersion().String(), "kind": "Gadget",
		"metadata": map[string]any{
			"name":   fmt.Sprintf("gadget-%05x", i),
			"labels": map[string]any{"app": app},
		},
		"spec": map[string]any{
			"number": int64(i), "replicas": int64(3), "enabled": true, "ratio": 0.75,
			"selector":    map[string]any{"app": app, "tier": "backend"},
			"endpoints":   endpoints,
			"description": prose(i, 600),
		},
		"status": map[string]any{
			"observedGeneration": int64(1),
			"conditions": []any{
				map[string]any{"type": "Ready", "status": "True", "reason": "AllEndpointsReady", "lastTransitionTime": "2026-01-01T00:00:00Z"},
				map[string]any{"type": "Synced", "status": "True", "reason": "Reconciled", "lastTransitionTime": "2026-01-01T00:00:00Z"},
			},
		},
	}}
}

var words = strings.Fields("server listen address timeout seconds retry backoff maximum connection pool size " +
	"database host name enabled true false level info debug output path metrics interval buffer limit")

// prose is text of about that size that compresses as configuration does.
func prose(seed, sizeBytes int) string {
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	var b strings.Builder
	for b.Len() < sizeBytes {
		fmt.Fprintf(&b, "%s-%s: %s%d\n", words[random.IntN(len(words))], words[random.IntN(len(words))],
			words[random.IntN(len(words))], random.IntN(10_000))
	}
	return b.String()
}
