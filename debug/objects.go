package debug

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// objects are the keys of an informer, or one of its objects.
type objects struct {
	Informer string
	Keys     []string       `json:",omitempty"`
	Key      string         `json:",omitempty"`
	Object   map[string]any `json:",omitempty"`
}

// objects shows the keys of ?informer=, or its object of ?key=.
func (h handler) objects(w http.ResponseWriter, r *http.Request) {
	found := objects{Informer: r.FormValue("informer"), Key: r.FormValue("key")}
	s := h.cache.Informer(found.Informer)
	if s == nil {
		http.Error(w, "no informer of this name runs here", http.StatusNotFound)
		return
	}
	if found.Key == "" {
		found.Keys = s.GetStore().ListKeys()
		slices.Sort(found.Keys)
		h.write(w, r, http.StatusOK, "objects", found)
		return
	}
	obj, exists, err := s.GetStore().GetByKey(found.Key)
	if err == nil && exists {
		found.Object, err = shown(found.Informer, obj)
	}
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case !exists:
		http.Error(w, "the cache has no object of this key", http.StatusNotFound)
	default:
		h.write(w, r, http.StatusOK, "object", found)
	}
}

const (
	notShown    = "(not shown)"
	lastApplied = "kubectl.kubernetes.io/last-applied-configuration" // It has the whole object once more.
)

// shown returns the JSON fields of an object. Of a Secret it shows only apiVersion, kind, type, and metadata without
// annotations. Typed objects have no kind, and a transform may return any type, so the Go type and the informer's name
// also tell a Secret.
func shown(informer string, obj any) (fields map[string]any, err error) {
	encoded, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	metadata, _ := fields["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	if annotations[lastApplied] != nil {
		annotations[lastApplied] = notShown
	}
	if !strings.HasPrefix(informer, "secrets/") && fields["kind"] != "Secret" && !strings.HasSuffix(fmt.Sprintf("%T", obj), ".Secret") {
		return fields, nil
	}
	for field := range fields {
		if !slices.Contains([]string{"apiVersion", "kind", "metadata", "type"}, field) {
			fields[field] = notShown
		}
	}
	if annotations != nil {
		metadata["annotations"] = notShown
	}
	return fields, nil
}
