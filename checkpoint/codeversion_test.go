package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Two programs have one of these types each, under the same name.
func beforeTheUpgrade() []any {
	type Part struct{ A string }
	type Object struct {
		metav1.TypeMeta `json:",inline"`
		Spec            Part
		Parts           map[string][]*Part
		Next            *Object
		hidden          int
	}
	type Tagged struct {
		A string `json:"a"`
	}
	type Coded struct{ a int } // It has a codec of its own.
	return []any{&Object{hidden: 1}, &Tagged{}, &Coded{a: 1}}
}

func afterTheUpgrade() []any {
	type Part struct{ A, B string }
	type Object struct {
		metav1.TypeMeta `json:",inline"`
		Spec            Part
		Parts           map[string][]*Part
		Next            *Object
		hidden          int
	}
	type Tagged struct {
		A string `json:"b"`
	}
	type Coded struct{ b int }
	return []any{&Object{hidden: 1}, &Tagged{}, &Coded{b: 1}}
}

func TestSchemaVersion(t *testing.T) {
	if got, want := SchemaVersion(&unstructured.Unstructured{}), "unstructured"; got != want {
		t.Errorf("of unstructured objects = %q, want %q", got, want)
	}
	before, after := beforeTheUpgrade(), afterTheUpgrade()
	for i := range before {
		if fmt.Sprintf("%T", before[i]) != fmt.Sprintf("%T", after[i]) {
			t.Fatalf("%T and %T", before[i], after[i])
		}
		if version := SchemaVersion(before[i]); version == SchemaVersion(after[i]) {
			t.Errorf("%T with another definition has the same version", before[i])
		} else if again := SchemaVersion(beforeTheUpgrade()[i]); again != version {
			t.Errorf("%T has the versions %s and %s", before[i], version, again)
		}
	}
	versions := map[string]any{}
	for _, example := range []any{nil, &corev1.Pod{}, corev1.Pod{}, &corev1.Secret{}, &metav1.PartialObjectMetadata{}, &struct{ A int }{}} {
		version := SchemaVersion(example)
		if other, same := versions[version]; same {
			t.Errorf("%T and %T have the same version", example, other)
		}
		versions[version] = example
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
