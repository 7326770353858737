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
// it decodes objects from the server, so after a change they have to be read again.
//
// It names the modules, with their versions, that define the type and the types of
// its fields: that of a custom resource that embeds a PodSpec changes with
// k8s.io/api. Where a module's version does not pin its source, as in one that is
// being worked on, it is [BinaryVersion]. Unstructured objects drop nothing, so for
// them it is a constant.
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

// schemaVersion returns false if it does not know the version of every type.
func schemaVersion(t reflect.Type, info *debug.BuildInfo) (string, bool) {
	if t == nil {
		return "", false
	}
	c := moduleCollector{info: info, seen: map[reflect.Type]bool{}, modules: map[string]bool{}}
	if !c.visit(t) || len(c.modules) == 0 {
		return "", false
	}
	return strings.Join(slices.Sorted(maps.Keys(c.modules)), ","), true
}

// A moduleCollector collects the modules, as path@version, of all types that can
// be part of an encoded object.
type moduleCollector struct {
	info    *debug.BuildInfo
	seen    map[reflect.Type]bool
	modules map[string]bool
}

// visit adds the modules of t and of its parts. It returns false at the first type
// of unknown version.
func (c *moduleCollector) visit(t reflect.Type) bool {
	if c.seen[t] {
		return true
	}
	c.seen[t] = true
	if pkg := t.PkgPath(); pkg != "" {
		m := moduleOf(pkg, c.info)
		if m == nil {
			return isStandard(pkg)
		}
		version, ok := pinned(m)
		if !ok {
			return false
		}
		c.modules[version] = true
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return c.visit(t.Elem())
	case reflect.Map:
		return c.visit(t.Key()) && c.visit(t.Elem())
	case reflect.Struct:
		for f := range t.Fields() {
			// No codec sees an unexported field, unless it is embedded.
			if (f.IsExported() || f.Anonymous) && !c.visit(f.Type) {
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
	see := func(m *debug.Module) {
		rest, inside := strings.CutPrefix(pkg, m.Path)
		inside = inside && (rest == "" || rest[0] == '/')
		if m.Path != "" && inside && (found == nil || len(m.Path) > len(found.Path)) {
			found = m
		}
	}
	see(&info.Main)
	for _, m := range info.Deps {
		see(m)
	}
	return found
}

// isStandard reports whether pkg, which is in no known module, is in the standard
// library: module paths begin with a domain.
func isStandard(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return !strings.Contains(first, ".")
}

// pinned returns path@version of m, if there is only one source with that version.
func pinned(m *debug.Module) (string, bool) {
	if m.Replace != nil {
		m = m.Replace // A directory has an empty version.
	}
	if m.Version == "" || m.Version == "(devel)" || strings.Contains(m.Version, "+dirty") {
		return "", false
	}
	return m.Path + "@" + m.Version, true
}

// BinaryVersion identifies the running executable: two that could behave differently
// have different versions. It is computed once, and safe for concurrent use.
var BinaryVersion = sync.OnceValue(func() string {
	// After an upgrade in place the path leads to another file than the one that
	// runs. On Linux /proc/self/exe still leads to that one.
	paths := []string{"/proc/self/exe"}
	if path, err := os.Executable(); err == nil {
		paths = append(paths, path)
	}
	for _, path := range paths {
		if v, err := fileVersion(path); err == nil {
			return v
		}
	}
	// A random version equals no other, not even that of the next start.
	return "unknown:" + rand.Text()
})

// fileVersion returns the Go build ID of an executable or, if it has none that
// identifies it, the hash of the file. The ID comes first because reading all of a
// large executable from slow storage would take seconds.
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
