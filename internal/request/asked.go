package request

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Asked is what a List or a watch asks for.
type Asked struct {
	Resource  schema.GroupVersionResource
	Namespace string
	// The selectors, as [Labels] and [Fields] return them.
	LabelSelector, FieldSelector string
	// Metadata says that only the metadata of the objects is asked for.
	Metadata bool
}

func (a Asked) String() string {
	text := fmt.Sprintf("%s, namespace %q, labels %q, fields %q", a.Resource, a.Namespace, a.LabelSelector, a.FieldSelector)
	if a.Metadata {
		text += ", metadata only"
	}
	return text
}

// Of returns what a request asks for, which must be that of a List or of a watch.
func Of(r *http.Request) (Asked, error) {
	a, ok := ofPath(r.URL.Path)
	if !ok {
		return Asked{}, fmt.Errorf("%s %s is no list of a resource", r.Method, r.URL.Path)
	}
	query := r.URL.Query()
	var err error
	if a.LabelSelector, err = Labels(query.Get("labelSelector")); err != nil {
		return Asked{}, err
	}
	if a.FieldSelector, err = Fields(query.Get("fieldSelector")); err != nil {
		return Asked{}, err
	}
	// See k8s.io/client-go/metadata/metadata.go for what it accepts.
	a.Metadata = strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	return a, nil
}

// ofPath reads the end of a path, because a proxy may have put something before it:
// api/VERSION/RESOURCE or apis/GROUP/VERSION/RESOURCE, the resource perhaps in
// namespaces/NAMESPACE.
func ofPath(path string) (a Asked, ok bool) {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	from := func(n int) []string { return segments[max(0, len(segments)-n):] }
	isRoot := func(s []string, n int, root string) bool {
		return len(s) == n && s[0] == root && !slices.Contains(s, "")
	}
	switch g6, g5, g4, g3 := from(6), from(5), from(4), from(3); {
	case isRoot(g6, 6, "apis") && g6[3] == "namespaces":
		a.Resource, a.Namespace = schema.GroupVersionResource{Group: g6[1], Version: g6[2], Resource: g6[5]}, g6[4]
	case isRoot(g5, 5, "api") && g5[2] == "namespaces":
		a.Resource, a.Namespace = schema.GroupVersionResource{Version: g5[1], Resource: g5[4]}, g5[3]
	case isRoot(g4, 4, "apis"):
		a.Resource = schema.GroupVersionResource{Group: g4[1], Version: g4[2], Resource: g4[3]}
	case isRoot(g3, 3, "api"):
		a.Resource = schema.GroupVersionResource{Version: g3[1], Resource: g3[2]}
	default:
		return a, false
	}
	return a, true
}

// Labels returns a label selector in the form in which equal ones are equal.
func Labels(selector string) (string, error) {
	s, err := labels.Parse(selector)
	if err != nil {
		return "", fmt.Errorf("label selector %q: %w", selector, err)
	}
	return s.String(), nil
}

// Fields returns a field selector in the form in which equal ones are equal.
func Fields(selector string) (string, error) {
	s, err := fields.ParseSelector(selector)
	if err != nil {
		return "", fmt.Errorf("field selector %q: %w", selector, err)
	}
	return s.String(), nil
}
