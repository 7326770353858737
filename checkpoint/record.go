package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrBadRecord is returned for bytes that are not a checkpoint.
var ErrBadRecord = errors.New("checkpoint: malformed record")

// A State says how complete and how consistent the stored objects are.
type State string

const (
	// StateSyncing means that the objects must not be served. Either the first list is incomplete, so some are missing.
	// Or they are not what the program expects, for example objects of another cluster.
	StateSyncing State = "syncing"
	// StateRefreshing means that a later relist is incomplete, or that an object was refused. No object is missing, but
	// some are older than others.
	StateRefreshing State = "refreshing"
	// StateComplete means that the objects are those at the resourceVersion.
	StateComplete State = "complete"
)

// A Form is the Go form of the stored objects.
type Form string

// The forms of client-go's three sorts of informers.
const (
	FormTyped        Form = "typed"
	FormMetadata     Form = "metadata"
	FormUnstructured Form = "unstructured"
)

// An Identity identifies the data of one informer. Different identities never
// share a space in the file. The cluster is not part of it, because it is known
// only when the server is reached.
type Identity struct {
	Group         string `json:"group,omitempty"`
	Version       string `json:"version,omitempty"`
	Resource      string `json:"resource,omitempty"`
	Namespace     string `json:"namespace,omitempty"`
	LabelSelector string `json:"labelSelector,omitempty"`
	FieldSelector string `json:"fieldSelector,omitempty"`
	ShardSelector string `json:"shardSelector,omitempty"`
	Name          string `json:"name,omitempty"` // Tells apart two informers over the same data.
	Form          Form   `json:"form,omitempty"`
	// Path is the beginning of the server's paths. It distinguishes the clusters behind one proxy, and logical clusters
	// of one server. It is empty if the request is not known.
	Path string `json:"path,omitempty"`
}

// String describes i to people, without empty fields.
func (i Identity) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)", i.resource(), i.Form)
	for _, f := range []struct{ name, value string }{
		{"namespace", i.Namespace},
		{"labels", i.LabelSelector},
		{"fields", i.FieldSelector},
		{"shard", i.ShardSelector},
		{"name", i.Name},
		{"path", i.Path},
	} {
		if f.value != "" {
			fmt.Fprintf(&b, " %s=%q", f.name, f.value)
		}
	}
	return b.String()
}

// resource returns deployments.apps/v1, or pods/v1 for the core group.
func (i Identity) resource() string {
	if i.Group == "" {
		return i.Resource + "/" + i.Version
	}
	return i.Resource + "." + i.Group + "/" + i.Version
}

// Space returns the name of the space in the file that has the data of this identity:
// short, the same in every process, and different for every other identity. Only
// its beginning is for people.
func (i Identity) Space() string {
	// Each field is preceded by its length: a selector may contain any separator.
	// The order of the fields is part of the file format.
	fields := []string{
		i.Group, i.Version, i.Resource, i.Namespace, i.LabelSelector, i.FieldSelector, i.Name, string(i.Form),
	}
	if i.ShardSelector != "" || i.Path != "" { // Earlier programs did not have them.
		fields = append(fields, i.ShardSelector)
	}
	if i.Path != "" {
		fields = append(fields, i.Path)
	}
	var b []byte
	for _, field := range fields {
		b = binary.AppendUvarint(b, uint64(len(field)))
		b = append(b, field...)
	}
	sum := sha256.Sum256(b)
	return i.resource() + "-" + hex.EncodeToString(sum[:16])
}

// A Record is the resume point of one informer. It must stay comparable with ==.
type Record struct {
	// ResourceVersion is the version at which a watch can be resumed. It is empty if that is not possible. It is stored
	// with the store's state, because it changes with every event.
	ResourceVersion string `json:"-"`
	// HighestVersion is set while no watch can be resumed. It is the highest resourceVersion that a stored object may
	// have: the version of a list that was not completed, or of an earlier checkpoint. It is NoVersion if nobody knows.
	HighestVersion string `json:"highestVersion,omitempty"`
	State          State  `json:"state,omitempty"`
	// LastFullList is when the contents of all objects were last compared with the
	// server's.
	LastFullList time.Time `json:"lastFullList,omitzero"`
	// ServerSchema identifies the server's schema of the objects before that list. Empty if it is
	// not known.
	ServerSchema string `json:"serverSchema,omitempty"`
	// VouchedAt is when the server last said, by an event, a bookmark or a list,
	// that the objects are those at the resourceVersion, in whole seconds.
	VouchedAt        time.Time `json:"vouchedAt,omitzero"`
	ClusterID        string    `json:"clusterID,omitempty"` // Empty if it was not known.
	Identity         Identity  `json:"identity,omitzero"`
	SchemaVersion    string    `json:"schemaVersion,omitempty"`    // See the function [SchemaVersion].
	TransformVersion string    `json:"transformVersion,omitempty"` // Empty without a transform.
	IndexVersion     string    `json:"indexVersion,omitempty"`     // Empty without indexers, or while the index is rebuilt.
	// Rewrite says that a relist which writes every record anew is running or due. It may take several processes.
	Rewrite bool `json:"rewrite,omitempty"`
}

// NoVersion as HighestVersion means that no watch can be resumed, and that any list will do.
const NoVersion = "0"

// Encode returns the record as JSON, without its resourceVersion. A time beyond the year 9999 has no JSON: then Parse
// refuses the result.
func (r Record) Encode() []byte {
	b, err := json.Marshal(r)
	if err != nil {
		return []byte{}
	}
	return b
}

// Parse decodes the result of Encode. resourceVersion is the store's. It becomes the record's, unless the record has a
// HighestVersion. Parse ignores unknown fields, and leaves missing ones zero, for [Decide] to judge. An error wraps
// [ErrBadRecord].
func Parse(b []byte, resourceVersion string) (Record, error) {
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrBadRecord, err)
	}
	if r.HighestVersion == "" {
		r.ResourceVersion = resourceVersion
	}
	return r, nil
}
