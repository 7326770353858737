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
	// A list is slow if more than slowWait is spent with waiting for its first slowBytes. That is
	// about 100 Mbit/s: with more, the server and the client need longer for the compression than it
	// spares.
	slowBytes = 512 << 10
	slowWait  = 40 * time.Millisecond
	// leastBytes: no list is given up before, because kube-apiserver does not compress smaller ones
	// (apiserver, endpoints/handlers/responsewriters).
	leastBytes = 128 << 10
	// beginBytes is how much room there is for the beginning of a list at first: most lists are small.
	beginBytes = 16 << 10
	// remembered is how long a slow list counts.
	remembered = 10 * time.Minute
)

// A Link is what was seen of the connection to a server. It decides whether lists are compressed that are read item by
// item, which costs the server up to as much processor time again as the list, and more for text that hardly repeats
// (docs/design/decisions.md). They are if the connection is slow:
//   - until a small answer has come within nearBy,
//   - for the time remembered after the beginning of a list has come slowly: that list is asked for again,
//   - for a list that was cut, and goes on in smaller pages.
//
// Other lists follow the client's setting (rest.Config.DisableCompression). The methods may be called concurrently.
type Link struct {
	bytes atomic.Int64 // Of all lists.

	mu     sync.Mutex
	answer time.Duration // The least time that a small answer took. 0: there was none.
	slow   time.Time     // When a list was slow last.
}

// compresses reports whether the next list is left to the transport, which has it compressed, unless its
// client does not want that. A list that was cut is.
func (l *Link) compresses(wasCut bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	slow := !l.slow.IsZero() && time.Since(l.slow) < remembered
	return wasCut || slow || l.answer == 0 || l.answer > nearBy
}

// wasSlow notes that a list was slow, or that it came compressed although it was not asked for so: for some time that
// is left to the transport.
func (l *Link) wasSlow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = time.Now()
}

// timed sends a request that has a small answer, and notes the time until that begins. The least one
// counts, because a server may be busy, and a connection must be opened first. A refusal may be that of a
// gateway in front of the server.
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

// measure reads the beginning of a list that is not compressed, and reports whether the link is fast: the
// beginning came fast, or all lists that are being read came fast together, because they share the link and
// the processors. If so, the response still has all of the list.
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

// begunBody is a body of which the beginning was read before.
type begunBody struct {
	io.Reader
	io.Closer
}
