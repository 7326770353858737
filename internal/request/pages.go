package request

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

const (
	// pageTries is how often a page is asked for again without new items.
	pageTries = 5
	// pagePause is the time before a page is asked for again. It doubles.
	pagePause = 500 * time.Millisecond
)

// pages reads a list item by item, whether the server sends it in one answer or in several. If the
// connection ends, it goes on where it was, but not on the first page: that would be another list.
// One goroutine uses it.
type pages struct {
	transport http.RoundTripper
	request   *http.Request // For the first page.
	link      *Link         // Nil: the transport decides whether the list is compressed.
	limit     *pageLimit    // For the next pages.
	list      listReader    // The present page. Nil: it has to be asked for.
	body      io.Closer     // Likewise.

	resourceVersion string        // The list's, once its first page was read.
	token           string        // Continues the list where the page begins. Empty: it is the first page.
	read            int           // How many items of the page were read.
	tries           int           // How often the page was asked for again since its last new item.
	putOff          time.Duration // How long the server wants us to wait before that.
	returned        int           // How many items behind the token were returned. After a cut it may be more than read.
}

func newPages(t Transport, first *http.Request) *pages {
	limit, _ := strconv.ParseInt(first.URL.Query().Get("limit"), 10, 64) // The server refuses a limit that is no number.
	return &pages{transport: t.RoundTripper, link: t.Link, request: first, limit: newPageLimit(limit)}
}

// begin asks for the first page. It returns a refusal for the client.
func (p *pages) begin() (refusal *http.Response, err error) {
	resp, err := p.askFirst()
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	return nil, p.open(resp)
}

// askFirst asks for the first page: without compression if the link is fast, and again with compression if the link
// turns out to be slow. The other pages come in the same form.
func (p *pages) askFirst() (*http.Response, error) {
	if p.link == nil || p.link.compresses(p.limit.isReduced()) {
		return p.ask()
	}
	usual := p.request
	p.request = usual.Clone(usual.Context())
	p.request.Header.Set("Accept-Encoding", "identity")
	resp, err := p.ask()
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	if !isCompressed(resp) && p.link.measure(resp) {
		return resp, nil
	}
	_ = resp.Body.Close() // The body is not used.
	p.link.wasSlow()
	p.request = usual
	return p.ask()
}

func isCompressed(resp *http.Response) bool {
	encoding := resp.Header.Get("Content-Encoding")
	return encoding != "" && encoding != "identity"
}

// ask asks for a page.
func (p *pages) ask() (*http.Response, error) {
	r := p.request
	if p.token != "" {
		r = r.Clone(r.Context())
		query := r.URL.Query()
		query.Del("resourceVersion")
		query.Del("resourceVersionMatch")
		query.Set("continue", p.token)
		if limit := p.limit.objects; limit > 0 {
			query.Set("limit", strconv.FormatInt(limit, 10))
		}
		r.URL.RawQuery = query.Encode()
	}
	resp, err := p.transport.RoundTrip(r)
	if err == nil {
		link := p.link
		if resp.Uncompressed { // The number of bytes on the link is not known.
			link = nil
		}
		resp.Body = &wireBody{resp.Body, link}
	}
	return resp, err
}

func (p *pages) open(resp *http.Response) (err error) {
	p.body, p.read = resp.Body, 0
	p.list, err = listIn(resp)
	return err
}

func (p *pages) close() {
	if p.body != nil {
		_ = p.body.Close() // The body was read, or is not used.
		p.body = nil
	}
}

// errPutOff is returned for a page that the server may have later.
var errPutOff = errors.New("a page is put off")

// next returns an item. The next call overwrites it. After the last item it returns io.EOF.
func (p *pages) next() ([]byte, error) {
	for {
		item, err := p.nextOfPage()
		again := errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errPutOff)
		if !again || p.token == "" || p.tries == pageTries {
			return item, err
		}
		p.close()
		if p.list != nil && p.tries > 0 { // The page is too large for the connection.
			p.limit.cut()
		}
		p.list = nil
		select {
		case <-time.After(max(pagePause<<p.tries, p.putOff)):
		case <-p.request.Context().Done():
			return nil, err
		}
		p.tries++
	}
}

func (p *pages) nextOfPage() ([]byte, error) {
	for {
		if p.list == nil {
			if err := p.goOn(); err != nil {
				return nil, err
			}
		}
		item, err := p.list.next()
		if err == io.EOF { //nolint:errorlint // It is returned as it is.
			if err := p.turn(); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if p.token == "" { // The first page is not asked for again.
			return item, nil
		}
		if p.read++; p.read > p.returned { // Otherwise it was returned before its page was cut.
			p.returned, p.tries = p.read, 0
			return item, nil
		}
	}
}

// goOn asks for a page that is not the first.
func (p *pages) goOn() error {
	p.putOff = 0
	resp, err := p.ask()
	if err != nil {
		return fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
	}
	if resp.StatusCode == http.StatusOK {
		return p.open(resp)
	}
	return errors.Join(p.refused(resp), resp.Body.Close())
}

// refused returns the error of an answer that is no page.
func (p *pages) refused(resp *http.Response) error {
	err := fmt.Errorf("%w: a page: %s", ErrUnsupported, resp.Status)
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		err = apierrors.NewTooManyRequestsError("a page of a list: " + resp.Status)
	case resp.StatusCode < http.StatusInternalServerError:
		return err
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // Other servers send nothing, or a date.
	p.putOff = time.Duration(seconds) * time.Second
	return fmt.Errorf("%w: %w", errPutOff, err)
}

// turn is called at the end of a page. It returns io.EOF after the last page. All pages must be of one list.
func (p *pages) turn() error {
	p.close()
	last := p.list.head()
	if p.token != "" && last.ResourceVersion != p.resourceVersion {
		return fmt.Errorf("%w: a page is of version %s, those before of %s", ErrUnsupported, last.ResourceVersion, p.resourceVersion)
	}
	p.resourceVersion = last.ResourceVersion
	if last.Continue == "" {
		return io.EOF
	}
	if _, err := resourceversion.CompareResourceVersion(last.ResourceVersion, last.ResourceVersion); err != nil {
		return fmt.Errorf("%w: a list of version %q, which may change between its pages", ErrUnsupported, last.ResourceVersion)
	}
	p.limit.came()
	p.token, p.list = last.Continue, nil
	p.returned -= p.read // A page that came again may be shorter than before.
	p.read, p.tries = 0, 0
	return nil
}
