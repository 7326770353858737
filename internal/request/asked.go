package request

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
)

// Asked is what a List or a watch asks for.
type Asked struct {
	Resource  schema.GroupVersionResource
	Namespace string
	// The selectors, as [Labels] and [Fields] return them.
	LabelSelector, FieldSelector string
	// ShardSelector as it is written: only the server can read it.
	ShardSelector string
	// Metadata says that only the metadata of the objects is asked for.
	Metadata bool
}

func (a Asked) String() string {
	text := fmt.Sprintf("%s, namespace %q, labels %q, fields %q", a.Resource, a.Namespace, a.LabelSelector, a.FieldSelector)
	if a.ShardSelector != "" {
		text += fmt.Sprintf(", shard %q", a.ShardSelector)
	}
	if a.Metadata {
		text += ", metadata only"
	}
	return text
}

// Of returns what a request asks for. It fails if the request is neither a list of a resource nor a watch.
func Of(r *http.Request) (Asked, error) {
	a, _, ok := ofPath(r.URL.Path)
	if !ok || r.Method != http.MethodGet {
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
	a.ShardSelector = query.Get("shardSelector")
	// See k8s.io/client-go/metadata/metadata.go for what it accepts.
	a.Metadata = strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	return a, nil
}

// ofPath reads the end of a path, because a proxy may have put a prefix before it:
// api/VERSION/RESOURCE or apis/GROUP/VERSION/RESOURCE, the resource perhaps in
// namespaces/NAMESPACE. It also returns the prefix. No group is called api. Behind
// namespaces, api and apis are names of namespaces: such a request asks for an object.
func ofPath(path string) (a Asked, prefix string, ok bool) {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	endsWith := func(length int, root string) (end []string, ok bool) {
		if len(segments) < length {
			return nil, false
		}
		before := segments[:len(segments)-length]
		prefix, end = strings.Join(append([]string{""}, before...), "/"), segments[len(segments)-length:]
		if len(before) > 0 && before[len(before)-1] == "namespaces" {
			return nil, false
		}
		return end, end[0] == root && !slices.Contains(end, "")
	}
	if end, ok := endsWith(5, "api"); ok && end[2] == "namespaces" {
		return Asked{Resource: schema.GroupVersionResource{Version: end[1], Resource: end[4]}, Namespace: end[3]}, prefix, true
	}
	if end, ok := endsWith(6, "apis"); ok && end[3] == "namespaces" {
		return Asked{Resource: schema.GroupVersionResource{Group: end[1], Version: end[2], Resource: end[5]}, Namespace: end[4]}, prefix, true
	}
	if end, ok := endsWith(3, "api"); ok {
		return Asked{Resource: schema.GroupVersionResource{Version: end[1], Resource: end[2]}}, prefix, true
	}
	if end, ok := endsWith(4, "apis"); ok {
		return Asked{Resource: schema.GroupVersionResource{Group: end[1], Version: end[2], Resource: end[3]}}, prefix, true
	}
	return Asked{}, "", false
}

// Labels returns one spelling for all spellings of a label selector: sorted, with key=value and key!=value instead of
// key in (value) and key notin (value).
func Labels(selector string) (string, error) {
	s, err := labels.Parse(selector)
	if err != nil {
		return "", fmt.Errorf("label selector %q: %w", selector, err)
	}
	requirements, _ := s.Requirements()
	for i, r := range requirements {
		operator := r.Operator()
		switch {
		case operator == selection.DoubleEquals, operator == selection.In && len(r.ValuesUnsorted()) == 1:
			operator = selection.Equals
		case operator == selection.NotIn && len(r.ValuesUnsorted()) == 1:
			operator = selection.NotEquals
		default:
			continue
		}
		same, err := labels.NewRequirement(r.Key(), operator, r.ValuesUnsorted())
		if err != nil {
			return "", fmt.Errorf("label selector %q: %w", selector, err)
		}
		requirements[i] = *same
	}
	return labels.NewSelector().Add(requirements...).String(), nil
}

// Fields is Labels for field selectors.
func Fields(selector string) (string, error) {
	s, err := fields.ParseSelector(selector)
	if err != nil {
		return "", fmt.Errorf("field selector %q: %w", selector, err)
	}
	return s.String(), nil
}
