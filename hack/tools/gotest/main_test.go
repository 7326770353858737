package main

import (
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
