package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestReportPrintsClosingLinesFailuresAndSkips(t *testing.T) {
	const events = `{"Action":"start","Package":"example.com/a"}
{"Action":"run","Package":"example.com/a","Test":"TestGood"}
{"Action":"output","Package":"example.com/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"example.com/a","Test":"TestGood","Output":"    a_test.go:5: a log line\n"}
{"Action":"pass","Package":"example.com/a","Test":"TestGood"}
{"Action":"output","Package":"example.com/a","Test":"TestSkip","Output":"=== RUN   TestSkip\n"}
{"Action":"output","Package":"example.com/a","Test":"TestSkip","Output":"    a_test.go:9: not on a Sunday\n"}
{"Action":"output","Package":"example.com/a","Test":"TestSkip","Output":"--- SKIP: TestSkip (0.00s)\n"}
{"Action":"skip","Package":"example.com/a","Test":"TestSkip"}
{"Action":"output","Package":"example.com/a","Output":"PASS\n"}
{"Action":"output","Package":"example.com/a","Output":"ok  \texample.com/a\t0.1s\n"}
{"Action":"pass","Package":"example.com/a"}
{"Action":"output","Package":"example.com/b","Test":"TestBad","Output":"    b_test.go:7: 1, want 2\n"}
{"Action":"output","Package":"example.com/b","Test":"TestBad","Output":"--- FAIL: TestBad (0.00s)\n"}
{"Action":"fail","Package":"example.com/b","Test":"TestBad"}
{"Action":"output","Package":"example.com/b","Test":"TestPanic","Output":"panic: oh\n"}
{"Action":"output","Package":"example.com/b","Output":"FAIL\texample.com/b\t0.2s\n"}
{"Action":"fail","Package":"example.com/b"}
{"Action":"build-output","ImportPath":"example.com/c","Output":"c.go:3: undefined: x\n"}
not an event
`
	const want = `ok  	example.com/a	0.1s
    b_test.go:7: 1, want 2
--- FAIL: TestBad (0.00s)
panic: oh
FAIL	example.com/b	0.2s
c.go:3: undefined: x
not an event
# 1 tests passed, 1 failed, 1 skipped
# skipped: example.com/a TestSkip: a_test.go:9: not on a Sunday
`
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	r.summarize()
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
}

func TestRunsAreEachPrintedAsAWhole(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.26\n",
		"a/a_test.go": `package a

import (
	"os"
	"testing"
)

func TestOfTheEnvironment(t *testing.T) { t.Skip(os.Getenv("KIND"), testing.Short()) }
`,
		"b/b_test.go": "package b\n\nimport \"testing\"\n\nfunc TestBad(t *testing.T) { t.Fatal(\"bad\") }\n",
	} {
		writeFile(t, filepath.Join(dir, name), content)
	}
	var out strings.Builder
	if !runAll(&out, 2, "-count=1", []string{dir + " KIND=x -short ./a", dir + " KIND=y ./a"}) {
		t.Errorf("failed:\n%s", out.String())
	}
	for _, want := range []string{
		"ok  \texample.com/m/a\t", "-short ./a (", "# 0 tests passed, 0 failed, 2 skipped\n",
		"# skipped: example.com/m/a TestOfTheEnvironment: a_test.go:8: x true\n", "TestOfTheEnvironment: a_test.go:8: y false\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed\n%s\nwithout\n%s", out.String(), want)
		}
	}
	out.Reset()
	if runAll(&out, 1, "", []string{dir + " ./b", dir + " ./a"}) || !strings.Contains(out.String(), "b_test.go:5: bad\n--- FAIL") ||
		strings.Index(out.String(), "m/b") > strings.Index(out.String(), "m/a") {
		t.Errorf("printed\n%s", out.String())
	}
}
