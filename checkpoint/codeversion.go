package checkpoint

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// SchemaVersion identifies the definition of the Go type that example points to: the names, types and tags of its
// fields, and of the fields of these types. A program with another definition drops other fields when it decodes
// objects from the server. After a change they have to be read again. Unstructured objects drop nothing: their version
// is a constant.
func SchemaVersion(example any) string {
	if _, ok := example.(*unstructured.Unstructured); ok {
		return "unstructured"
	}
	var text bytes.Buffer
	writeType(&text, reflect.TypeOf(example), map[reflect.Type]bool{})
	sum := sha256.Sum256(text.Bytes())
	return hex.EncodeToString(sum[:16])
}

// writeType writes the definitions of t and of its parts that were not seen yet.
func writeType(w *bytes.Buffer, t reflect.Type, seen map[reflect.Type]bool) {
	if t == nil || seen[t] {
		return
	}
	seen[t] = true
	fmt.Fprintf(w, "%q %q %q\n", t.PkgPath(), t, t.Kind())
	switch t.Kind() {
	case reflect.Map:
		writeType(w, t.Key(), seen)
		writeType(w, t.Elem(), seen)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		writeType(w, t.Elem(), seen)
	case reflect.Struct:
		for f := range t.Fields() {
			fmt.Fprintf(w, "%q %q %q\n", f.Name, f.Type, f.Tag)
			writeType(w, f.Type, seen)
		}
	}
}

// BinaryVersion identifies the running executable: executables that could behave differently
// have different versions. It is computed once, and safe for concurrent use.
var BinaryVersion = sync.OnceValue(func() string {
	// After an upgrade in place the path leads to the new file, which does not run. On Linux /proc/self/exe still leads
	// to the running one.
	executable, _ := os.Executable()
	for _, path := range []string{"/proc/self/exe", executable} {
		if v, err := fileVersion(path); err == nil {
			return v
		}
	}
	// A random version equals no other, not even the next start's.
	return "unknown:" + rand.Text()
})

// fileVersion returns the Go build ID of an executable. Without a build ID that identifies it, it returns the hash of
// the file. Reading all of a large executable from slow storage would take seconds.
func fileVersion(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, 64<<10)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	if id := buildID(head[:n]); id != "" {
		return "buildid:" + id, nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// buildIDPattern matches the build ID after what the linker writes before it: the
// name of a note in an ELF file, a text in others, both close to the beginning. It
// matches only IDs of the go command, which are four hashes, the last that of the
// content. Other build systems, and reproducible builds, may use a constant, which
// does not identify anything.
const buildIDPattern = `(?:Go\x00\x00|Go build ID: ")((?:[\w-]{20}/){3}[\w-]{20})[\x00"]`

// buildID returns the build ID in the first bytes of an executable, or "".
func buildID(head []byte) string {
	if m := regexp.MustCompile(buildIDPattern).FindSubmatch(head); m != nil {
		return string(m[1])
	}
	return ""
}
