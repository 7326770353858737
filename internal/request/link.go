package request

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// nearBy: a server that answers a small request within this time is close enough that its
	// connection is probably fast.
	nearBy = 5 * time.Millisecond
	// A list is slow if the wait for its first slowBytes is longer than slowWait. That is about 100 Mbit/s: on a faster
	// link the server and the client need longer for the compression than it saves.
	slowBytes = 512 << 10
	slowWait  = 40 * time.Millisecond
	// leastBytes: no list is given up before so many bytes, because kube-apiserver does not compress smaller lists
	// (apiserver, endpoints/handlers/responsewriters).
	leastBytes = 128 << 10
	// beginBytes is the first room for the beginning of a list: most lists are small.
	beginBytes = 16 << 10
	// remembered is how long the link counts as slow after a slow list.
	remembered = 10 * time.Minute
)

// A Link measures the connection to a server. It decides whether lists that are read item by item are compressed.
// Compression costs the server up to as much processor time again as the list, and more for text that hardly repeats
// (docs/design/decisions.md). Lists are compressed if the connection is slow:
//   - until a small answer has come within nearBy,
//   - for the time remembered, after the beginning of a list has come slowly. That list is asked for again.
//
// Other lists follow the client's setting (rest.Config.DisableCompression). The methods may be called concurrently.
type Link struct {
	bytes atomic.Int64 // The bytes of all lists.

	mu     sync.Mutex
	answer time.Duration // The shortest time of a small answer. 0: there was none.
	slow   time.Time     // When a list was last slow.
}

// compresses reports whether the next list is left to the transport. The transport asks for compression, unless its
// client does not want that.
func (l *Link) compresses() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	slow := !l.slow.IsZero() && time.Since(l.slow) < remembered
	return slow || l.answer == 0 || l.answer > nearBy
}

// wasSlow notes that a list was slow, or that it came compressed although that was not asked for. For some time
// compression is left to the transport.
func (l *Link) wasSlow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = time.Now()
}

// timed sends a request with a small answer, and notes the time until the answer begins. The shortest time counts,
// because a server may be busy, and a connection must be opened first. A refusal does not count: a gateway in front of
// the server may have sent it.
func (l *Link) timed(t http.RoundTripper, r *http.Request) (*http.Response, error) {
	if l == nil {
		return t.RoundTrip(r)
	}
	var written atomic.Pointer[time.Time] // A transport calls the function from another goroutine.
	resp, err := t.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { written.Store(new(time.Now())) },
	})))
	if begun := written.Load(); err == nil && resp.StatusCode == http.StatusOK && begun != nil {
		l.answered(time.Since(*begun))
	}
	return resp, err
}

func (l *Link) answered(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.answer == 0 || after < l.answer {
		l.answer = max(after, 1)
	}
}

// carried is called with the bytes of a list that have been read.
func (l *Link) carried(bytes int) {
	if l != nil {
		l.bytes.Add(int64(bytes))
	}
}

// measure reads the beginning of a list that is not compressed, and reports whether the link is fast. It is fast if the
// beginning came fast. It is also fast if all lists that are being read came fast together: they share the link and the
// processors. If it is fast, the response still has all of the list.
func (l *Link) measure(list *http.Response) (fast bool) {
	begin, waited := make([]byte, 0, beginBytes), time.Duration(0)
	begun, before := time.Now(), l.bytes.Load()
	for err := error(nil); err == nil && len(begin) < slowBytes; {
		begin = slices.Grow(begin, 1)
		asked := time.Now()
		var n int
		n, err = list.Body.Read(begin[len(begin):cap(begin)]) // What follows returns the error again.
		waited += time.Since(asked)
		begin = begin[:len(begin)+n]
		enough := time.Duration(l.bytes.Load()-before) * slowWait / slowBytes // For all that came meanwhile, by a fast link.
		if err == nil && waited > slowWait && len(begin) >= leastBytes && time.Since(begun) > enough {
			return false
		}
	}
	list.Body = &begunBody{io.MultiReader(bytes.NewReader(begin), list.Body), list.Body}
	return true
}

// begunBody is a body whose beginning was read before.
type begunBody struct {
	io.Reader
	io.Closer
}
