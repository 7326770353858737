package command

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/deletions"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/reflector"
)

// knownTypes has the Go types of client-go's scheme, by the name that records have.
var knownTypes = sync.OnceValue(func() map[string]reflect.Type {
	types := map[string]reflect.Type{}
	for _, t := range scheme.Scheme.AllKnownTypes() {
		types[typeName(t)] = t
	}
	return types
})

func typeName(t reflect.Type) string { return "*" + t.PkgPath() + "." + t.Name() }

// decode returns an object for JSON: one of a known Go type, or a map. Of an object in protobuf whose Go type is not
// known it returns the metadata. Secrets are not masked if show.
func (i *informer) decode(payload []byte, show bool) (any, error) {
	r, err := record.Parse(payload)
	if err != nil {
		return nil, err
	}
	obj, err := decodeRecord(r)
	if err == nil {
		i.setKind(obj, r.TypeName[strings.LastIndexByte(r.TypeName, '.')+1:])
		if !show && i.isSecret(obj) {
			obj, err = mask(obj)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s of %d bytes: %w", r.TypeName, len(r.Body), err)
	}
	return obj, nil
}

func decodeRecord(r record.Record) (runtime.Object, error) {
	switch r.Codec {
	case record.CodecJSON: // Of any type.
		u := &unstructured.Unstructured{}
		return u, utiljson.Unmarshal(r.Body, &u.Object)
	case record.CodecUnstructured:
		obj, err := r.Decode(nil)
		if err != nil {
			return nil, err
		}
		return obj.(*unstructured.Unstructured), nil
	}
	t := knownTypes()[r.TypeName]
	if t == nil { // The first field of all generated types is the metadata.
		t = reflect.TypeFor[metav1.PartialObjectMetadata]()
		r.TypeName = typeName(t)
	}
	obj := reflect.New(t).Interface().(runtime.Object)
	_, err := r.Decode(func() any { return obj })
	return obj, err
}

// setKind sets apiVersion and kind, which client-go's decoders remove from typed objects.
func (i *informer) setKind(obj runtime.Object, kind string) {
	if id := i.identity(); id.Version != "" && obj.GetObjectKind().GroupVersionKind().Kind == "" {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: id.Group, Version: id.Version, Kind: kind})
	}
}

// isSecret reports whether an object is a Secret, or what a transform has made of one.
func (i *informer) isSecret(obj runtime.Object) bool {
	return i.hasSecrets() || obj.GetObjectKind().GroupVersionKind() == corev1.SchemeGroupVersion.WithKind("Secret")
}

// hasSecrets reports whether the objects are Secrets. The space's name says so even if the checkpoint is lost.
func (i *informer) hasSecrets() bool {
	return strings.HasPrefix(i.space, "secrets/v1-")
}

const masked = "***"

// mask returns an object without what is secret in it.
func mask(obj runtime.Object) (runtime.Object, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	for name, value := range content {
		switch fields, isMap := value.(map[string]any); {
		case name == "metadata":
			annotations, _ := fields["annotations"].(map[string]any)
			if annotations[corev1.LastAppliedConfigAnnotation] != nil {
				annotations[corev1.LastAppliedConfigAnnotation] = masked
			}
		case name == "apiVersion" || name == "kind" || name == "type" || name == "immutable":
		case isMap:
			for key := range fields {
				fields[key] = masked
			}
		default:
			content[name] = masked
		}
	}
	return &unstructured.Unstructured{Object: content}, nil
}

// A delta is a queue.Delta, with its objects in JSON's form.
type delta struct {
	Type              string `json:"type"`
	Key               string `json:"key"`
	FinalStateUnknown bool   `json:"finalStateUnknown,omitempty"`
	Replaced          bool   `json:"replaced,omitempty"`
	Old               any    `json:"old,omitempty"`
	New               any    `json:"new,omitempty"`
}

// An entry is one of an index.
type entry struct {
	Index string `json:"index"`
	Value string `json:"value"`
}

// valueOf returns a value of a bucket for JSON. Secrets are not masked if show.
func (i *informer) valueOf(bucket, key string, payload []byte, show bool) (any, error) {
	switch {
	case bucket == indexer.ObjectsBucket || bucket == reflector.StagedBucket || bucket == deletions.BucketName:
		return i.decode(payload, show)
	case bucket == queue.DeltasBucket:
		d, err := queue.ParseDelta(payload)
		value := delta{Type: string(d.Type), Key: d.Key, FinalStateUnknown: d.FinalStateUnknown, Replaced: d.Replaced}
		if err == nil && d.OldRecord != nil {
			value.Old, err = i.decode(d.OldRecord, show)
		}
		if err == nil && d.NewRecord != nil {
			value.New, err = i.decode(d.NewRecord, show)
		}
		return value, err
	case bucket == indexer.IndexBucket:
		name, token, _, err := parseEntry(key)
		if err != nil {
			return nil, err
		}
		e := entry{name, token[1:]}
		if len(payload) > 0 {
			e.Value = string(payload)
		}
		if i.hasSecrets() && !show {
			e.Value = masked
		}
		return e, nil
	case bucket == queue.StateBucket && len(payload) == 8:
		return binary.BigEndian.Uint64(payload), nil
	case len(payload) == 0:
		return nil, nil
	}
	if !json.Valid(payload) {
		return string(payload), nil
	}
	return json.RawMessage(payload), nil
}

// parseEntry splits the key of an index entry: the names of the index, a token, and the object's key, the first two
// with their lengths. The token is the value, or its hash, behind a letter.
func parseEntry(key string) (index, token, object string, err error) {
	var parts [2]string
	for i := range parts {
		n, used := binary.Uvarint([]byte(key[:min(len(key), binary.MaxVarintLen64)]))
		if used <= 0 || n == 0 && i == 1 || n > uint64(len(key)-used) {
			return "", "", "", errors.New("malformed index entry")
		}
		parts[i], key = key[used:used+int(n)], key[used+int(n):]
	}
	return parts[0], parts[1], key, nil
}

// keyOf returns a key for people.
func keyOf(b persist.Bucket, key string) string {
	switch {
	case b.Name == queue.DeltasBucket:
		if number, _, err := queue.ParseDeltaKey(key); err == nil {
			return strconv.FormatUint(number, 10)
		}
	case b.Space == timelineSpace && len(key) == 8:
		return strconv.FormatUint(binary.BigEndian.Uint64([]byte(key)), 10)
	case b.Name == indexer.IndexBucket:
		if name, _, object, err := parseEntry(key); err == nil {
			return name + "/" + object
		}
	}
	if quoted := strconv.Quote(key); quoted != `"`+key+`"` {
		return quoted
	}
	return key
}
