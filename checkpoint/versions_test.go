package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type customResource struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	Spec map[string][]*corev1.PodSpec
}

type recursive struct{ Next *recursive }

func TestSchemaVersionOfBuildInfo(t *testing.T) {
	module := func(path, version string) *debug.Module { return &debug.Module{Path: path, Version: version} }
	replaced := func(path, by, version string) *debug.Module {
		return &debug.Module{Path: path, Version: "v1.0.0", Replace: module(by, version)}
	}
	ours := module("github.com/warmwatch/warmwatch", "v0.3.0")
	api, machinery := module("k8s.io/api", "v0.37.2"), module("k8s.io/apimachinery", "v0.37.2")

	for _, tc := range []struct {
		name    string
		example any
		main    *debug.Module
		deps    []*debug.Module
		want    string // Empty if it cannot be told.
	}{
		{"a Pod names the modules of its fields, too", &corev1.Pod{}, module("example.com/app", "(devel)"), []*debug.Module{api, machinery},
			"k8s.io/api@v0.37.2,k8s.io/apimachinery@v0.37.2"},
		{"a custom resource names what it embeds", &customResource{}, module("example.com/app", "(devel)"), []*debug.Module{api, machinery, ours},
			"github.com/warmwatch/warmwatch@v0.3.0,k8s.io/api@v0.37.2,k8s.io/apimachinery@v0.37.2"},
		{"metadata only", &metav1.PartialObjectMetadata{}, module("example.com/app", "(devel)"), []*debug.Module{machinery},
			"k8s.io/apimachinery@v0.37.2"},
		{"a type of the main module at a version", &recursive{}, ours, nil, "github.com/warmwatch/warmwatch@v0.3.0"},
		{"a value instead of a pointer", recursive{}, ours, nil, "github.com/warmwatch/warmwatch@v0.3.0"},
		{"a type of the main module under development", &recursive{}, module(ours.Path, "(devel)"), nil, ""},
		{"a type of the main module with local changes", &recursive{}, module(ours.Path, "v0.3.1-0.20260301+dirty"), nil, ""},
		{"a field from a module under development", &customResource{}, module("k8s.io/api", "(devel)"), []*debug.Module{machinery, ours}, ""},
		{"the longer path wins, for modules nest", &recursive{}, module("example.com/app", ""), []*debug.Module{module("github.com/warmwatch", "v9.0.0"), ours},
			"github.com/warmwatch/warmwatch@v0.3.0"},
		{"the longer path wins, whatever the order", &recursive{}, module("example.com/app", ""), []*debug.Module{ours, module("github.com/warmwatch", "v9.0.0")},
			"github.com/warmwatch/warmwatch@v0.3.0"},
		{"half a path element is no prefix", &recursive{}, ours, []*debug.Module{module("github.com/warmwatch/warmwatch/check", "v9.0.0")},
			"github.com/warmwatch/warmwatch@v0.3.0"},
		{"a module replaced by a version", &recursive{}, module("example.com/app", ""), []*debug.Module{replaced(ours.Path, "example.com/fork", "v0.4.0")},
			"example.com/fork@v0.4.0"},
		{"a module replaced by a directory", &recursive{}, module("example.com/app", ""), []*debug.Module{replaced(ours.Path, "../fork", "")}, ""},
		{"a module that the build does not name", &recursive{}, module("example.com/app", "v1.0.0"), nil, ""},
		{"a type of the standard library only", new(strings.Builder), ours, nil, ""},
		{"a type without a name", &struct{ A int }{}, ours, nil, ""},
		{"nil", nil, ours, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := schemaVersion(reflect.TypeOf(tc.example), &debug.BuildInfo{Main: *tc.main, Deps: tc.deps})
			if got != tc.want || ok != (tc.want != "") {
				t.Errorf("schemaVersion = %q, %t; want %q", got, ok, tc.want)
			}
		})
	}
}

func TestSchemaVersionInThisBinary(t *testing.T) {
	if got, want := SchemaVersion(&unstructured.Unstructured{}), "unstructured"; got != want {
		t.Errorf("of unstructured objects = %q, want %q", got, want)
	}
	pod := SchemaVersion(&corev1.Pod{})
	if !strings.HasPrefix(pod, "k8s.io/api@v") && pod != BinaryVersion() {
		t.Errorf("of Pods = %q, want that of k8s.io/api, or of the binary", pod)
	}
	if again := SchemaVersion(&corev1.Pod{}); again != pod {
		t.Errorf("of Pods = %q, then %q", pod, again)
	}
	if got := SchemaVersion(&recursive{}); got == "" {
		t.Error("of a type of this module: empty")
	}
}

func TestBinaryVersion(t *testing.T) {
	got := BinaryVersion()
	if !strings.HasPrefix(got, "buildid:") && !strings.HasPrefix(got, "sha256:") {
		t.Errorf("BinaryVersion() = %q", got)
	}
	if runtime.GOOS == "linux" && !strings.HasPrefix(got, "buildid:") {
		t.Errorf("BinaryVersion() = %q, though the go command made an ELF file", got)
	}
	if again := BinaryVersion(); again != got {
		t.Errorf("BinaryVersion() = %q, then %q", got, again)
	}
	path, err := os.Executable()
	if err != nil {
		t.Skip(err)
	}
	if ofFile, err := fileVersion(path); ofFile != got || err != nil {
		t.Errorf("of the executable's path: %q, %v; want %q", ofFile, err, got)
	}
}

func TestBinaryVersionOfFile(t *testing.T) {
	const (
		goID = "oYbCEXcwmvfLGuBZdhS3/7fGRSWtwRDbxv1ZKQ-Kx/H3iWwLjKNeZcfH_Sr3Qa/5HvYvLUwEHPNuQDwJGZz"
		elf  = "\x04\x00\x00\x00\x53\x00\x00\x00\x04\x00\x00\x00Go\x00\x00%s\x00\x04"
		text = "\xff Go build ID: \"%s\"\n \xff"
	)
	binary := func(before int, format, id string) string {
		return strings.Repeat("\x00", before) + fmt.Sprintf(format, id) + strings.Repeat("text", 50_000)
	}
	for _, tc := range []struct {
		name, content, prefix string
	}{
		{"an ELF file", binary(3972, elf, goID), "buildid:" + goID},
		{"another format", binary(4096, text, goID), "buildid:" + goID},
		{"an ELF file without an ID", binary(3972, elf, ""), "sha256:"},
		{"another format without an ID", binary(4096, text, ""), "sha256:"},
		{"a constant for an ID, as other build systems have it", binary(3972, elf, "redacted"), "sha256:"},
		{"a constant with slashes", binary(4096, text, "a/b/c/redacted"), "sha256:"},
		{"an ID that is too long to be one", binary(4096, text, goID+"x"), "sha256:"},
		{"an ID far from the beginning", binary(64<<10, text, goID), "sha256:"},
		{"an ID that is cut off", binary(64<<10-40, text, goID), "sha256:"},
		{"shorter than what is searched", "MZ", "sha256:"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			version := func(content string) string {
				t.Helper()
				path := filepath.Join(t.TempDir(), "binary")
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				v, err := fileVersion(path)
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			got := version(tc.content)
			if !strings.HasPrefix(got, tc.prefix) {
				t.Errorf("got %q, want %q...", got, tc.prefix)
			}
			changed := []byte(tc.content)
			changed[len(changed)-1]++
			if strings.HasPrefix(got, "sha256:") && version(string(changed)) == got {
				t.Error("a change of the last byte goes unnoticed")
			}
		})
	}
	if v, err := fileVersion(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Errorf("a missing file has version %q", v)
	}
}
