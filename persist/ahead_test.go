package persist

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func configMap(name string, sizeBytes int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"data": repeat(name, sizeBytes)}}
}

// stored decodes the value of a key.
func stored(t *testing.T, db *DB, key string, newObject func() any) (obj any, inMemory bool) {
	t.Helper()
	found, err := db.View(testBucket, key, func(it *Item) error {
		if o, ok := it.Value.(*Object); ok {
			obj, inMemory = o.Object, true
			return nil
		}
		payload, err := it.Payload()
		if err != nil {
			return err
		}
		rec, err := ParseRecord(payload)
		if err != nil {
			return err
		}
		obj, err = rec.Decode(newObject)
		return err
	})
	if err != nil || !found {
		t.Fatalf("key %s: found %t, %v", key, found, err)
	}
	return obj, inMemory
}

// TestObjectsThatAreEncodedAhead are read back unchanged, whatever their size, and
// although the memory of their bodies is used again.
func TestObjectsThatAreEncodedAhead(t *testing.T) {
	db := open(t, tempPath(t), manual)
	sizes := []int{0, 1, 400, 600, 1000, 5000, scratchBytes - 200, scratchBytes, 3 * scratchBytes, 1 << 20}
	for round := range 3 {
		want := map[string]*corev1.ConfigMap{}
		for i, size := range append(sizes, sizes...) {
			key := fmt.Sprint(round, i)
			want[key] = configMap(key, size)
			o := db.NewObject(want[key])
			if o.ahead == nil {
				t.Errorf("%d bytes are not encoded ahead", size)
			}
			payload, err := AppendObject(nil, 0, want[key])
			if err != nil {
				t.Fatal(err)
			}
			if n := len(payload); o.SizeBytes() < n-100 || o.SizeBytes() > n+100 {
				t.Errorf("the size is %d, the record has %d", o.SizeBytes(), n)
			}
			apply(t, db, func(b *Batch) {
				b.Put(testBucket, key, o)
				b.Put(testBucket, "and "+key, sharing{o}) // Sorts behind it.
			})
		}
		flush(t, db)
		for key, cm := range want {
			for _, key := range []string{key, "and " + key} {
				if got, inMemory := stored(t, db, key, func() any { return &corev1.ConfigMap{} }); inMemory || !apiequality.Semantic.DeepEqual(cm, got) {
					t.Fatalf("key %s: in memory %t, -want +got:\n%s", key, inMemory, objectDiff(cm, got))
				}
			}
		}
	}
}

// sharing is a value that contains an object.
type sharing struct{ *Object }

func (s sharing) AppendTo(dst []byte) ([]byte, error) { return s.AppendShared(dst) }

// TestWhatIsEncodedAheadIsEncodedAgain when a commit has failed.
func TestWhatIsEncodedAheadIsEncodedAgain(t *testing.T) {
	db := open(t, tempPath(t), manual)
	put(t, db, "first", "1")
	flush(t, db)
	fill(db, true)
	want := configMap("name", 1<<20)
	o := db.NewObject(want)
	apply(t, db, func(b *Batch) { b.Put(testBucket, "key", o) })
	if err := db.Flush(); err == nil {
		t.Fatal("the commit did not fail")
	}
	fill(db, false)
	flush(t, db)
	if got, inMemory := stored(t, db, "key", func() any { return &corev1.ConfigMap{} }); inMemory || !apiequality.Semantic.DeepEqual(want, got) {
		t.Errorf("in memory %t, -want +got:\n%s", inMemory, objectDiff(want, got))
	}
}

// TestWhatIsNotEncodedAhead: objects of a DB without a file, those whose size is cheaper
// to estimate, and those that cannot be encoded.
func TestWhatIsNotEncodedAhead(t *testing.T) {
	path := tempPath(t)
	db := open(t, path, manual)
	for name, obj := range map[string]any{
		"unstructured":  &unstructured.Unstructured{Object: map[string]any{"a": "b"}},
		"JSON":          &customResource{},
		"a nil pointer": (*corev1.Pod)(nil),
		"nil":           nil,
		"panics":        &panicky{},
	} {
		if o := db.NewObject(obj); o.ahead != nil || o.SizeBytes() <= 0 {
			t.Errorf("%s: ahead %v, %d bytes", name, o.ahead, o.SizeBytes())
		}
	}
	held, err := Open(path, Options{LockTimeout: 1, Logger: &quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if o := held.NewObject(newTestPod(t)); !held.MemoryOnly() || o.ahead != nil || o.SizeBytes() <= 0 {
		t.Errorf("without a file: ahead %v, %d bytes", o.ahead, o.SizeBytes())
	}
	if _, err := goTypeOf(&panicky{}).encode(&panicky{}, 0); err == nil || errors.Is(err, ErrClosed) {
		t.Errorf("encoding what panics: %v", err)
	}
}

// TestAStoredObjectIsWrittenAsItWasRead, once. A body that differs from the encoded object
// shows that the object was not encoded.
func TestAStoredObjectIsWrittenAsItWasRead(t *testing.T) {
	path := tempPath(t)
	db := open(t, path, manual)
	held, err := Open(path, Options{LockTimeout: 1, Logger: &quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	asJSON := recordOf(t, configMap("read", 10))
	asJSON.Codec = CodecJSON
	u := func(name string) any { return &unstructured.Unstructured{Object: map[string]any{"name": name}} }
	for _, c := range []struct {
		name       string
		db         *DB
		read       Record
		obj        any
		asItWas    bool
		expectAnew Record
	}{
		{"protobuf", db, recordOf(t, configMap("read", 5000)), configMap("decoded", 5000), true, recordOf(t, configMap("decoded", 5000))},
		{"an empty body", db, recordOf(t, &corev1.ConfigMap{}), &corev1.ConfigMap{}, true, recordOf(t, &corev1.ConfigMap{})},
		{"unstructured", db, recordOf(t, u("read")), u("decoded"), true, recordOf(t, u("decoded"))},
		{"another codec than the type has now", db, asJSON, configMap("decoded", 10), false, recordOf(t, configMap("decoded", 10))},
		{"without a file", held, recordOf(t, configMap("read", 10)), configMap("decoded", 10), false, recordOf(t, configMap("decoded", 10))},
	} {
		o := c.db.StoredObject(c.obj, c.read)
		want := bytes.Clone(c.read.Body)
		for i := range c.read.Body { // What was read is not valid any more.
			c.read.Body[i] = 0xff
		}
		if !c.asItWas {
			want = c.expectAnew.Body
		}
		for _, want := range [][]byte{want, c.expectAnew.Body} { // A commit that failed encodes again.
			b, err := o.AppendTo(nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := ParseRecord(b)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if !bytes.Equal(got.Body, want) || got.Seq != c.read.Seq || got.Codec != goTypeOf(c.obj).codec {
				t.Errorf("%s: seq %d, codec %v, body %q, expected %q", c.name, got.Seq, got.Codec, got.Body, want)
			}
		}
	}
}

// TestObjectsAreNotEncodedAheadWhileCommitsFail: they stay in memory as they are.
func TestObjectsAreNotEncodedAheadWhileCommitsFail(t *testing.T) {
	db := open(t, tempPath(t), manual)
	put(t, db, "first", "1")
	flush(t, db)
	fill(db, true)
	put(t, db, "large", repeat("x", 1<<20))
	if err := db.Flush(); err == nil {
		t.Fatal("the commit did not fail")
	}
	if o := db.NewObject(newTestPod(t)); o.ahead != nil {
		t.Error("was encoded ahead")
	}
	fill(db, false)
	flush(t, db)
	if o := db.NewObject(newTestPod(t)); o.ahead == nil {
		t.Error("was not encoded ahead after it")
	}
}

// fromTheBeginning encodes correctly only into a buffer of exactly its size.
type fromTheBeginning struct{ part }

func (f *fromTheBeginning) Size() int { return f.part.Size() }
func (f *fromTheBeginning) MarshalToSizedBuffer(b []byte) (int, error) {
	return copy(b, f.encode()), nil
}
func (f *fromTheBeginning) Unmarshal(b []byte) error { return f.part.Unmarshal(b) }

// TestMarshallersThatFillFromTheBeginning are given buffers of the right size: a larger
// one may hold the remains of other objects at its end.
func TestMarshallersThatFillFromTheBeginning(t *testing.T) {
	g := &goType{name: "fromTheBeginning", codec: CodecProtobuf}
	for _, text := range []string{"", "one", "another one"} {
		if _, err := encodeProtobuf(&part{repeat("secret", 1000)}); err != nil {
			t.Fatal(err)
		}
		obj := &fromTheBeginning{part{text}}
		b, err := g.encode(obj, 0)
		if err != nil || string(b.bytes) != string(obj.encode()) {
			t.Errorf("%q is encoded as %.100q, %v", text, b.bytes, err)
		}
	}
}

// nothing may be large, and may be encoded to no bytes at all.
type nothing struct{ large []byte }

func (n *nothing) Size() int                                  { return len(n.large) }
func (n *nothing) MarshalToSizedBuffer(b []byte) (int, error) { return fromTheEnd(b, n.large) }
func (n *nothing) Unmarshal(b []byte) error                   { n.large = append([]byte(nil), b...); return nil }

func TestObjectsThatAreEncodedToNothing(t *testing.T) {
	db := open(t, tempPath(t), manual)
	db.AddHook(&Hook{AfterReset: func(err error) { t.Errorf("the file was replaced: %v", err) }})
	for i, size := range []int{100 << 10, 0, 0, 100 << 10, 0} {
		key, o := fmt.Sprint(i), db.NewObject(&nothing{make([]byte, size)})
		apply(t, db, func(b *Batch) { b.Put(testBucket, key, o) })
		flush(t, db)
		got, inMemory := stored(t, db, key, func() any { return &nothing{} })
		if n := len(got.(*nothing).large); inMemory || n != size {
			t.Errorf("in memory %t, %d bytes, expected %d", inMemory, n, size)
		}
	}
	if err := db.Err(); err != nil {
		t.Error(err)
	}
}

// TestRecordsAreMadeWhereTheirBodiesAre: the file gets the same bytes as if the body had
// been copied, which is still done where there is no room for the envelope.
func TestRecordsAreMadeWhereTheirBodiesAre(t *testing.T) {
	db := open(t, tempPath(t), manual)
	for what, c := range map[string]struct {
		version       string
		size          int
		seq           uint64
		copied, typed bool
	}{
		"small":                   {version: "1"},
		"with a type":             {version: "1", typed: true},
		"a large number":          {version: "12345678901234567890", size: 3000, seq: 1 << 63},
		"a class filled":          {version: "1", size: 4096 - headRoomBytes - checksumBytes - 27},
		"a long version":          {version: repeat("v", headRoomBytes-54), size: 100},
		"no room":                 {version: repeat("v", headRoomBytes), size: 100, copied: true},
		"larger than all classes": {version: "1", size: 3 * scratchBytes, copied: true},
	} {
		obj := configMap("name", c.size)
		obj.ResourceVersion = c.version
		if c.typed {
			obj.APIVersion, obj.Kind = "v1", "ConfigMap"
		}
		goTypeOf(obj).bodyBytes.Store(defaultBodyBytes) // As if there had been no large ones.
		o := db.NewObject(obj)
		o.Seq = c.seq
		want, err := AppendObject(nil, c.seq, obj)
		if err != nil {
			t.Fatal(err)
		}
		want = seal(want, 0, testBucket, "key")
		var a arena
		got, err := a.seal(testBucket, "key", o)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %d bytes, %v, expected %d", what, len(got), err, len(want))
		}
		if copied := len(a.bodies) == 0; copied != c.copied {
			t.Errorf("%s: copied %t, expected %t", what, copied, c.copied)
		}
		if o.ahead != nil {
			t.Errorf("%s: the encoding is kept", what)
		}
		a.reset()
		if len(a.bodies) != 0 {
			t.Errorf("%s: %d bodies are kept", what, len(a.bodies))
		}
	}
}
