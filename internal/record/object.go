package record

// An Object is a persist.Value that holds one Kubernetes object.
type Object struct {
	Seq       uint64 // Distinguishes the versions of an object, see [Record].
	Object    any
	sizeBytes int
	body      []byte // The encoding, if it was made before the commit. Does not change.
	keepsBody bool   // Same keeps the encoding that it makes, for the commit.
}

// NewObject wraps obj, which must not change from now on; Seq may be set until it is put.
// If it is likely to be written soon, objects of protobuf types are encoded at once: this
// takes little longer than to estimate their size, and makes the estimate unnecessary.
func NewObject(obj any, soon bool) *Object {
	if g := goTypeOf(obj); g != nil && g.codec == CodecProtobuf && !isNilPointer(obj) && soon {
		if body, err := g.encode(obj); err == nil { // Else the committer will get the error, too.
			return &Object{Object: obj, sizeBytes: envelopeBytes + len(body), body: body, keepsBody: true}
		}
	}
	return &Object{Object: obj, sizeBytes: EstimateSize(obj), keepsBody: soon}
}

// StoredObject wraps obj, which was decoded from r and must not change from now on.
// If it is likely to be written soon, and obj would be encoded by r's codec, a copy of r's
// body is written. Otherwise obj is encoded.
func StoredObject(obj any, r Record, soon bool) *Object {
	o := &Object{Seq: r.Seq, Object: obj, sizeBytes: r.SizeBytes()}
	if g := goTypeOf(obj); g != nil && g.codec == r.Codec && soon {
		o.body = append(make([]byte, 0, len(r.Body)), r.Body...) // Not nil, although it may be empty.
	}
	return o
}

// BaseObject returns a base for [Record.DecodeNear]: obj, which was decoded from r. It is valid as
// long as r's body is.
func BaseObject(obj any, r Record) *Object {
	return &Object{Seq: r.Seq, Object: obj, sizeBytes: r.SizeBytes(), body: r.Body}
}

// AppendTo implements persist.Value.
func (o *Object) AppendTo(dst []byte) ([]byte, error) {
	return appendRecord(dst, o.Seq, o.Object, o.body)
}

// SizeBytes implements persist.Value.
func (o *Object) SizeBytes() int { return o.sizeBytes }
