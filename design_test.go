package warmwatch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestInvariantsAreCited: each invariant of docs/design/README.md is named by a test, and
// nothing names one that is not there.
func TestInvariantsAreCited(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("docs", "design", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-Z]\d) \|`).FindAllSubmatch(page, -1) {
		tested[string(row[1])] = false
	}
	if len(tested) == 0 {
		t.Fatal("the page has no table of invariants")
	}
	id := regexp.MustCompile(`\b[PCQIH]\d\b`)
	err = filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (path == "bin" || strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case entry.IsDir() || (filepath.Ext(path) != ".go" && filepath.Ext(path) != ".md"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, cited := range id.FindAllString(string(text), -1) {
			if _, there := tested[cited]; !there {
				t.Errorf("%s cites %s, which docs/design/README.md does not have", path, cited)
			}
			if strings.HasSuffix(path, "_test.go") {
				tested[cited] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for cited, is := range tested {
		if !is {
			t.Errorf("no test cites %s", cited)
		}
	}
}

// TestTheExampleOfTheReadmeIsCompiled: it is a part of an Example, but for the indentation.
func TestTheExampleOfTheReadmeIsCompiled(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	if len(blocks) == 0 {
		t.Fatal("README.md has no Go code")
	}
	indentation := regexp.MustCompile(`(?m)^\t+`)
	for _, block := range blocks {
		code := indentation.ReplaceAllString(string(block[1]), "")
		if !strings.Contains(indentation.ReplaceAllString(string(examples), ""), code) {
			t.Errorf("example_test.go does not have this:\n%s", block[1])
		}
	}
}
