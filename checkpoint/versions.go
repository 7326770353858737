package checkpoint

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"os"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// SchemaVersion identifies the definition of the Go type of example, which is
// a pointer to it. A program with another definition drops other fields when
// it decodes what the server sends, so its objects have to be read again.
//
// It names the modules, with their versions, that define the type and the
// types of its fields: a custom resource that embeds a PodSpec changes with
// k8s.io/api. Where a version does not pin the source, as in a module that is
// being worked on, it is [BinaryVersion]. Unstructured objects drop nothing,
// so theirs is a constant.
func SchemaVersion(example any) string {
	if _, ok := example.(*unstructured.Unstructured); ok {
		return "unstructured"
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v, ok := schemaVersion(reflect.TypeOf(example), info); ok {
			return v
		}
	}
	return BinaryVersion()
}

// schemaVersion returns false if it cannot tell the version of every type.
func schemaVersion(t reflect.Type, info *debug.BuildInfo) (string, bool) {
	if t == nil {
		return "", false
	}
	w := moduleWalk{info: info, seen: map[reflect.Type]bool{}, modules: map[string]bool{}}
	if !w.visit(t) || len(w.modules) == 0 {
		return "", false
	}
	return strings.Join(slices.Sorted(maps.Keys(w.modules)), ","), true
}

// A moduleWalk collects the modules, as path@version, of all types that can
// be part of an encoded object.
type moduleWalk struct {
	info    *debug.BuildInfo
	seen    map[reflect.Type]bool
	modules map[string]bool
}

// visit returns false, at once, if it meets a type of unknown version.
func (w *moduleWalk) visit(t reflect.Type) bool {
	if w.seen[t] {
		return true
	}
	w.seen[t] = true
	if pkg := t.PkgPath(); pkg != "" {
		m := moduleOf(pkg, w.info)
		if m == nil {
			return isStandard(pkg)
		}
		version, ok := pinned(m)
		if !ok {
			return false
		}
		w.modules[version] = true
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return w.visit(t.Elem())
	case reflect.Map:
		return w.visit(t.Key()) && w.visit(t.Elem())
	case reflect.Struct:
		for f := range t.Fields() {
			// No codec sees an unexported field, unless it is embedded.
			if (f.IsExported() || f.Anonymous) && !w.visit(f.Type) {
				return false
			}
		}
	}
	return true
}

// moduleOf returns the module with the longest path that contains pkg, since
// modules nest.
func moduleOf(pkg string, info *debug.BuildInfo) *debug.Module {
	if pkg == "main" {
		return &info.Main
	}
	var found *debug.Module
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		inside := pkg == m.Path || strings.HasPrefix(pkg, m.Path+"/")
		if m.Path != "" && inside && (found == nil || len(m.Path) > len(found.Path)) {
			found = m
		}
	}
	return found
}

// isStandard reports whether pkg, which is in no module, is in the standard
// library: the paths of modules begin with a domain.
func isStandard(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return !strings.Contains(first, ".")
}

// pinned returns path@version of m, if that stands for one source only.
func pinned(m *debug.Module) (string, bool) {
	if m.Replace != nil {
		m = m.Replace // Its version is empty if it is a directory.
	}
	if m.Version == "" || m.Version == "(devel)" || strings.Contains(m.Version, "+dirty") {
		return "", false
	}
	return m.Path + "@" + m.Version, true
}

// BinaryVersion identifies the running executable: two that could behave
// differently have different versions. It is computed once.
func BinaryVersion() string { return binaryVersion() }

var binaryVersion = sync.OnceValue(func() string {
	// What runs may not be what its path leads to any more, after an upgrade
	// in place. Linux keeps a way to the file that was started.
	paths := []string{"/proc/self/exe"}
	if path, err := os.Executable(); err == nil {
		paths = append(paths, path)
	}
	for _, path := range paths {
		if v, err := fileVersion(path); err == nil {
			return v
		}
	}
	// Equal to nothing, not even to the next start: too careful, but right.
	return "unknown:" + rand.Text()
})

// fileVersion returns the Go build ID of an executable or, if it has none that
// means something, the hash of all of it. Reading all of a large executable
// from slow storage would take seconds.
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

// buildIDPattern matches the ID after what the linker puts before it: the name
// of a note in an ELF file, a text elsewhere, both close to the beginning. An
// ID of the go command has four hashes, the last of them of the content. Other
// build systems, and those who want reproducible builds, replace it with a
// constant, which does not identify anything.
const buildIDPattern = `(?:Go\x00\x00|Go build ID: ")((?:[\w-]{20}/){3}[\w-]{20})[\x00"]`

// buildID returns the build ID that is in the beginning of an executable, or
// "".
func buildID(head []byte) string {
	if m := regexp.MustCompile(buildIDPattern).FindSubmatch(head); m != nil {
		return string(m[1])
	}
	return ""
}
