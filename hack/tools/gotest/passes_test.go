package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPassesCountsRunsAndFailures(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":            "module example.com/m\n\ngo 1.26\n",
		"good/good_test.go": "package good\n\nimport \"testing\"\n\nfunc TestA(*testing.T) {}\nfunc TestB(t *testing.T) { t.Run(\"sub\", func(*testing.T) {}) }\n",
		"bad/bad_test.go": `package bad

import (
	"runtime"
	"testing"
)

func TestFine(*testing.T) {}

func TestNotWithFour(t *testing.T) {
	if runtime.GOMAXPROCS(0) == 4 || !testing.Short() {
		t.Error("too many")
	}
}
`,
		"ends/ends_test.go":  "package ends\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestMain(*testing.M) { os.Exit(3) }\n",
		"without/without.go": "package without\n",
	} {
		writeFile(t, filepath.Join(dir, name), content)
	}
	var out strings.Builder
	p := passes{number: 4, jobs: 2, tmp: dir, out: &out}
	if err := p.run(t.Context(), dir, nil, []string{"./..."}); err == nil {
		t.Error("no error")
	}
	for _, want := range []string{ // Two processes of three passes each.
		"# example.com/m/good: 6 passes, 12 tests run, 0 failures; 0 of 2 processes failed\n",
		"# example.com/m/bad: 0 passes, 12 tests run, 2 failures; 2 of 2 processes failed\n",
		"# example.com/m/ends: 0 passes, 0 tests run, 2 failures; 2 of 2 processes failed\n",
		"# failed 2 times: example.com/m/bad TestNotWithFour\n",
		"# failed 2 times: example.com/m/ends the process\n",
		"too many",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed\n%s\nwithout\n%s", out.String(), want)
		}
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(content), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
