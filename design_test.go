package warmwatch_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// eachText calls f with each page and each Go file of the repository.
func eachText(t *testing.T, f func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (path == "bin" || strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case entry.IsDir() || (filepath.Ext(path) != ".go" && filepath.Ext(path) != ".md"):
			return nil
		}
		text, err := os.ReadFile(path)
		f(path, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestInvariantsAreCited: each promise of docs/limits.md is cited by a test, and has its mechanism in
// docs/design/README.md. Nothing cites one that is not there.
func TestInvariantsAreCited(t *testing.T) {
	row := regexp.MustCompile(`(?m)^\| ([A-Z]\d) \|`)
	id := regexp.MustCompile(`\b[ADSPCQIH]\d\b`) // The last five are those of a former contract.
	rows, cited, tested := map[string]map[string]bool{}, map[string]string{}, map[string]bool{}
	eachText(t, func(path, text string) {
		rows[path] = map[string]bool{}
		for _, r := range row.FindAllStringSubmatch(text, -1) {
			rows[path][r[1]] = true
		}
		for _, c := range id.FindAllString(text, -1) {
			cited[c] = path
			tested[c] = tested[c] || strings.HasSuffix(path, "_test.go")
		}
	})
	promised, kept := rows[filepath.Join("docs", "limits.md")], rows[filepath.Join("docs", "design", "README.md")]
	if len(promised) == 0 {
		t.Fatal("docs/limits.md has no table of promises")
	}
	for p := range promised {
		if !kept[p] {
			t.Errorf("docs/design/README.md does not say what keeps %s", p)
		}
		if !tested[p] {
			t.Errorf("no test cites %s", p)
		}
	}
	for c, path := range cited {
		if !promised[c] {
			t.Errorf("%s cites %s, which docs/limits.md does not promise", path, c)
		}
	}
}

// TestTheDocsNameTestsThatExist: a page that names a test names one of this repository.
func TestTheDocsNameTestsThatExist(t *testing.T) {
	name := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark|Example)[A-Z]\w+`)
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)[A-Z]\w+)\(`)
	named, exist := map[string]string{}, map[string]bool{}
	eachText(t, func(path, text string) {
		if filepath.Ext(path) == ".md" {
			for _, n := range name.FindAllString(text, -1) {
				named[n] = path
			}
		}
		for _, f := range function.FindAllStringSubmatch(text, -1) {
			exist[f[1]] = true
		}
	})
	for n, path := range named {
		if !exist[n] {
			t.Errorf("%s names %s, which does not exist", path, n)
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
