// Package record encodes Kubernetes objects as they are stored: an envelope that can be read
// on its own, and the encoded body.
//
// A body is protobuf for generated types, msgpack for unstructured content, and JSON for
// everything else (codec.go). It may be encoded before the commit that writes it (object.go),
// decoded beside another version of the object (base.go), and compared (same.go). The format is in
// docs/design/README.md, "The file".
package record
