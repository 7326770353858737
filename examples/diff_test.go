// Package examples compares programs before and after they use warmwatch.
package examples

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestFewLinesChange counts the lines that are removed and added, but for imports and comments.
func TestFewLinesChange(t *testing.T) {
	for example, want := range map[string]struct{ removed, added int }{
		"controller": {1, 3}, // A factory is another one, and the Cache is opened and closed.
		"manager":    {2, 2}, // One call, which takes two arguments more.
	} {
		files, err := filepath.Glob(filepath.Join(example, "before", "*.go"))
		if err != nil || len(files) != 2 {
			t.Fatal(files, err)
		}
		var removed, added []string
		for _, file := range files {
			before, after := code(t, file), code(t, filepath.Join(example, "after", filepath.Base(file)))
			same := common(before, after)
			removed, added = append(removed, without(before, same)...), append(added, without(after, same)...)
		}
		if len(removed) != want.removed || len(added) != want.added {
			t.Errorf("%s: removed\n%s\nadded\n%s", example, strings.Join(removed, "\n"), strings.Join(added, "\n"))
		}
	}
}

// code returns the lines of a file that follow the imports.
func code(t *testing.T, file string) []string {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\nimport (\n")
	_, rest, closed := strings.Cut(rest, "\n)\n")
	if !ok || !closed {
		t.Fatalf("%s has no imports", file)
	}
	return strings.Split(rest, "\n")
}

// common returns the longest common subsequence.
func common(a, b []string) []string {
	longest := make([][][]string, len(a)+1)
	for i := range longest {
		longest[i] = make([][]string, len(b)+1)
	}
	for i := range a {
		for j := range b {
			switch {
			case a[i] == b[j]:
				longest[i+1][j+1] = append(slices.Clip(longest[i][j]), a[i])
			case len(longest[i][j+1]) >= len(longest[i+1][j]):
				longest[i+1][j+1] = longest[i][j+1]
			default:
				longest[i+1][j+1] = longest[i+1][j]
			}
		}
	}
	return longest[len(a)][len(b)]
}

// without returns the lines that are not in the subsequence.
func without(lines, subsequence []string) []string {
	var rest []string
	for _, line := range lines {
		if len(subsequence) > 0 && subsequence[0] == line {
			subsequence = subsequence[1:]
			continue
		}
		rest = append(rest, line)
	}
	return rest
}
