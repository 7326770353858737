package request

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

const (
	// nearBy: a server that answers a small request within this time is close enough that its
	// connection is probably fast.
	nearBy = 5 * time.Millisecond
	// A list is fast if no more than fastWait is spent with waiting for its first fastBytes. That is
	// about 100 Mbit/s: with more, the server and the client need longer for the compression than it
	// spares.
	fastBytes = 512 << 10
	fastWait  = 40 * time.Millisecond
	// remembered is how long a slow list counts,
	remembered = 10 * time.Minute
	// measuredFor how long the time of a small answer.
	measuredFor = 10 * time.Second
)

// A Link is the connection of a client to a server. It decides whether lists are compressed, which
// costs a server as much processor time again as the list (docs/design/speed.md): all or none, or
// those over a connection that is slow by what was seen of it. Its methods may be called concurrently,
// and for a nil Link, which leaves it to the client's transport.
type Link struct {
	fixed    bool
	compress bool // Used if fixed.

	mu       sync.Mutex
	answer   time.Duration // How long a small answer took.
	measured time.Time     // When that was. Zero: never.
	slow     time.Time     // When a list was slow last.
}

// FixedLink returns a Link that has all lists compressed, or none.
func FixedLink(compress bool) *Link { return &Link{fixed: true, compress: compress} }

// compresses reports whether the next list is compressed.
func (l *Link) compresses() bool {
	if l == nil || l.fixed {
		return l == nil || l.compress
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	wasSlow := !l.slow.IsZero() && time.Since(l.slow) < remembered
	return wasSlow || l.measured.IsZero() || l.answer > nearBy
}

// timed returns the request, so that the time until its small answer begins is noted. The least one
// counts, because a server may be busy, and a connection must be opened first.
func (l *Link) timed(r *http.Request) *http.Request {
	if l == nil || l.fixed {
		return r
	}
	var mu sync.Mutex // A transport calls the functions from several goroutines.
	var written time.Time
	return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) {
			mu.Lock()
			defer mu.Unlock()
			written = time.Now()
		},
		GotFirstResponseByte: func() {
			mu.Lock()
			defer mu.Unlock()
			if !written.IsZero() {
				l.answered(time.Since(written))
			}
		},
	}))
}

func (l *Link) answered(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if after <= l.answer || l.measured.IsZero() || time.Since(l.measured) > measuredFor {
		l.answer, l.measured = after, time.Now()
	}
}

// isFast reads the beginning of a list that is not compressed, and reports whether it came fast. If so,
// the response has all of it still.
func (l *Link) isFast(list *http.Response) bool {
	if l.fixed {
		return true
	}
	begin, waited := make([]byte, 0, fastBytes), time.Duration(0)
	var err error
	for err == nil && len(begin) < cap(begin) {
		if waited > fastWait {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.slow = time.Now()
			return false
		}
		asked := time.Now()
		var n int
		n, err = list.Body.Read(begin[len(begin):cap(begin)])
		begin, waited = begin[:len(begin)+n], waited+time.Since(asked)
	}
	list.Body = &begunBody{io.MultiReader(bytes.NewReader(begin), &restOf{list.Body, err}), list.Body}
	return true
}

// begunBody is a body of which the beginning was read before.
type begunBody struct {
	io.Reader
	io.Closer
}

// restOf is what follows, or the error that was read with the beginning.
type restOf struct {
	io.Reader
	err error
}

func (r *restOf) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	return r.Reader.Read(p)
}
