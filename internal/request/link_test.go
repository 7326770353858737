package request

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	goruntime "runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// connection is a network with a delay, and so many bytes a second.
type connection struct {
	answers time.Duration
	rate    int64 // 0: no limit.
	status  int   // 0: 200.
	body    []byte
	err     error // After the body, if it is not compressed.
	// unasked: a proxy compresses what is not to be compressed. never: the transport compresses nothing.
	unasked, never bool
	asked          []string
}

func (c *connection) RoundTrip(r *http.Request) (*http.Response, error) {
	c.asked = append(c.asked, r.Header.Get("Accept-Encoding"))
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.WroteRequest != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{})
		time.Sleep(c.answers)
	}
	resp := answer(cmp.Or(c.status, http.StatusOK), runtime.ContentTypeProtobuf, nil)
	resp.Body = io.NopCloser(&limited{c: c, left: c.body})
	if c.unasked {
		resp.Header.Set("Content-Encoding", "gzip")
	}
	if r.Header.Get("Accept-Encoding") != "identity" && !c.never {
		resp.Uncompressed = true
		resp.Body = io.NopCloser(bytes.NewReader(c.body))
	}
	return resp, nil
}

// askForList asks for the first page of a list.
func askForList(t *testing.T, transport Transport) (*http.Response, error) {
	list, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api/v1/pods", nil)
	if err != nil {
		return nil, err
	}
	return newPages(transport, list).askFirst()
}

// limited is a body that is not compressed.
type limited struct {
	c    *connection
	left []byte
}

func (l *limited) Read(p []byte) (int, error) {
	n := copy(p[:min(len(p), 16<<10)], l.left)
	l.left = l.left[n:]
	if l.c.rate > 0 {
		time.Sleep(time.Second * time.Duration(n) / time.Duration(l.c.rate))
	}
	switch {
	case n > 0:
		return n, nil
	case l.c.err != nil:
		return 0, l.c.err
	}
	return 0, io.EOF
}

// TestListsAreCompressedOnSlowLinks, and no others.
func TestListsAreCompressedOnSlowLinks(t *testing.T) {
	const near, far, slow, fast = 500 * time.Microsecond, 50 * time.Millisecond, 1 << 20, 100 << 20
	small, large := make([]byte, 30<<10), make([]byte, 2<<20)
	for name, test := range map[string]struct {
		link  *Link
		small bool // A small answer was timed before.
		c     connection
		want  []string
	}{
		"nothing is known":       {link: new(Link), c: connection{body: large}, want: []string{""}},
		"a fast link":            {link: new(Link), small: true, c: connection{answers: near, rate: fast, body: large}, want: []string{"identity"}},
		"a far server":           {link: new(Link), small: true, c: connection{answers: far, rate: fast, body: large}, want: []string{""}},
		"a near one, and slow":   {link: new(Link), small: true, c: connection{answers: near, rate: slow, body: large}, want: []string{"identity", ""}},
		"a slow one, but little": {link: new(Link), small: true, c: connection{answers: near, rate: slow, body: small}, want: []string{"identity"}},
		"no link is known":       {small: true, c: connection{answers: near, rate: fast, body: large}, want: []string{""}},
		"less than a server compresses": {link: new(Link), small: true, c: connection{answers: near, rate: slow, body: make([]byte, 120<<10)},
			want: []string{"identity"}},
		"one that compresses unasked": {link: new(Link), small: true, c: connection{answers: near, rate: fast, body: large, unasked: true},
			want: []string{"identity", ""}},
		"a list that is cut": {link: new(Link), small: true, c: connection{answers: near, body: small, err: io.ErrUnexpectedEOF},
			want: []string{"identity"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				transport := Transport{RoundTripper: &test.c, Link: test.link}
				if test.small {
					list, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api/v1/pods", nil)
					if err != nil {
						t.Fatal(err)
					}
					seen := &Seen{request: list, transport: transport}
					resp, err := seen.Get(t.Context(), "/openapi/v3")
					if err != nil {
						t.Fatal(err)
					}
					if err := resp.Body.Close(); err != nil {
						t.Fatal(err)
					}
					test.c.asked = nil
				}
				resp, err := askForList(t, transport)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				if !bytes.Equal(body, test.c.body) || !errors.Is(err, test.c.err) {
					t.Errorf("%d bytes and %v, expected %d and %v", len(body), err, len(test.c.body), test.c.err)
				}
				if !slices.Equal(test.c.asked, test.want) {
					t.Errorf("it accepts %q, expected %q", test.c.asked, test.want)
				}
			})
		})
	}
}

// TestALinkThatWasSlowIsTriedAgain, but not at once. Of small answers the fastest one counts.
func TestALinkThatWasSlowIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := new(Link)
		compresses := func(want bool, when string) {
			t.Helper()
			if got := l.compresses(); got != want {
				t.Errorf("%s: %t", when, got)
			}
		}
		l.answered(100 * time.Millisecond)
		compresses(true, "after a slow answer")
		l.answered(time.Millisecond)
		l.answered(100 * time.Millisecond)
		compresses(false, "after a fast one")
		slow := &limited{c: &connection{rate: 1 << 20}, left: make([]byte, slowBytes)}
		if l.measure(&http.Response{Body: io.NopCloser(slow)}) {
			t.Error("512 KiB in half a second are fast")
		}
		l.wasSlow()
		compresses(true, "after a slow list")
		time.Sleep(remembered)
		compresses(false, "after a while")
		late := io.MultiReader(bytes.NewReader(make([]byte, leastBytes)), &limited{c: &connection{rate: 1 << 20}, left: make([]byte, slowBytes)})
		if l.measure(&http.Response{Body: io.NopCloser(late)}) {
			t.Error("what comes late is not seen")
		}
	})
}

// TestListsThatShareAFastLink are slow, each of them, and the link is not.
func TestListsThatShareAFastLink(t *testing.T) {
	for name, c := range map[string]struct {
		rate int64 // Of each of ten.
		want string
	}{
		"a fast link": {4 << 20, "identity"},
		"a slow link": {512 << 10, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := new(Link)
				l.answered(time.Millisecond)
				var lists sync.WaitGroup
				for range 10 {
					lists.Go(func() {
						connection := &connection{rate: c.rate, body: make([]byte, 2<<20)}
						resp, err := askForList(t, Transport{connection, l})
						if err == nil {
							_, err = io.Copy(io.Discard, resp.Body)
						}
						if err != nil || connection.asked[len(connection.asked)-1] != c.want {
							t.Errorf("it accepts %q, %v", connection.asked, err)
						}
					})
				}
				lists.Wait()
			})
		})
	}
}

// TestWhereAskingHasNoInfluenceLittleIsAskedForTwice: the client wants no compression, or a proxy
// compresses always.
func TestWhereAskingHasNoInfluenceLittleIsAskedForTwice(t *testing.T) {
	for name, test := range map[string]struct {
		l *Link
		c connection
	}{
		"a client without compression": {new(Link), connection{rate: 1 << 20, body: make([]byte, slowBytes), never: true}},
		"a proxy that compresses":      {new(Link), connection{rate: 1 << 20, body: make([]byte, slowBytes), unasked: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, c := test.l, &test.c
				l.answered(time.Millisecond)
				for range 3 {
					if _, err := askForList(t, Transport{c, l}); err != nil {
						t.Fatal(err)
					}
					time.Sleep(remembered / 4)
				}
				if want := []string{"identity", "", "", ""}; !slices.Equal(want, c.asked) {
					t.Errorf("it accepts %q, expected %q", c.asked, want)
				}
			})
		})
	}
}

// TestASmallListTakesLittleMemory while it is measured.
func TestASmallListTakesLittleMemory(t *testing.T) {
	const size = 10 << 10
	list := make([]byte, size)
	const lists = 20
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	for range lists {
		if !new(Link).measure(&http.Response{Body: io.NopCloser(bytes.NewReader(list))}) {
			t.Error("a list in memory is slow")
		}
	}
	goruntime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) / lists; got > 8*size {
		t.Errorf("%d bytes for a list of %d", got, size)
	}
}

// TestARefusalSaysNothingOfTheLink: a gateway may be near, and the server behind it far.
func TestARefusalSaysNothingOfTheLink(t *testing.T) {
	for status, want := range map[int]bool{http.StatusOK: false, http.StatusUnauthorized: true, http.StatusTooManyRequests: true, http.StatusBadGateway: true} {
		synctest.Test(t, func(t *testing.T) {
			l := new(Link)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api/v1/pods", nil)
			if err != nil {
				t.Fatal(err)
			}
			near := &connection{answers: time.Millisecond, status: status}
			resp, err := (&Seen{request: r, transport: Transport{near, l}}).Get(t.Context(), "/version")
			if err != nil {
				t.Fatal(err)
			}
			if err := resp.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if got := l.compresses(); got != want {
				t.Errorf("after status %d lists are compressed: %t", status, got)
			}
		})
	}
}
