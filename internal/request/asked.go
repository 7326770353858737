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

// ofPath reads a path from its end, because a proxy may have put a prefix before it:
// api/VERSION/RESOURCE or apis/GROUP/VERSION/RESOURCE, the resource perhaps in
// namespaces/NAMESPACE. It also returns the prefix. No group is called api or namespaces. Behind
// namespaces, api and apis are names of namespaces: such a request asks for an object.
func ofPath(path string) (a Asked, prefix string, ok bool) {
	all := strings.Split("/"+strings.Trim(path, "/"), "/")
	left := all
	last := func() (segment string) {
		if n := len(left) - 1; n > 0 {
			left, segment = left[:n], left[n]
		}
		return segment
	}
	a.Resource.Resource = last()
	if n := len(left); n > 2 && left[n-2] == "namespaces" {
		a.Namespace = last()
		last()
	}
	a.Resource.Version = last()
	if root := last(); root != "api" {
		a.Resource.Group, ok = root, last() == "apis"
	} else {
		ok = true
	}
	ok = ok && left[len(left)-1] != "namespaces" && !slices.Contains(all[len(left):], "")
	return a, strings.Join(left, "/"), ok
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
