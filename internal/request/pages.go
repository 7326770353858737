package request

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// pages reads a list item by item, whether the server sends it in one answer or in several. One goroutine uses it.
type pages struct {
	transport http.RoundTripper
	request   *http.Request // For the first page.
	link      *Link         // Nil: the transport decides whether the list is compressed.
	list      listReader    // The present page.
	body      io.Closer     // Of the present page. Nil: there is none.

	resourceVersion string // The list's, once its first page was read.
	token           string // Continues the list where the page begins. Empty: it is the first page.
}

func newPages(t Transport, first *http.Request) *pages {
	return &pages{transport: t.RoundTripper, link: t.Link, request: first}
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
	if p.link == nil || p.link.compresses() {
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
	p.body = resp.Body
	p.list, err = listIn(resp)
	return err
}

func (p *pages) close() {
	if p.body != nil {
		_ = p.body.Close() // The body was read, or is not used.
		p.body = nil
	}
}

// next returns an item. The next call overwrites it. After the last item it returns io.EOF.
func (p *pages) next() ([]byte, error) {
	for {
		item, err := p.list.next()
		if err != io.EOF { //nolint:errorlint // It is returned as it is.
			return item, err
		}
		if err := p.turn(); err != nil {
			return nil, err
		}
	}
}

// turn is called at the end of a page, and asks for the next one. It returns io.EOF after the last page. All pages must
// be of one list.
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
	p.token = last.Continue
	resp, err := p.ask()
	if err != nil {
		return fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
	}
	if resp.StatusCode == http.StatusOK {
		return p.open(resp)
	}
	// A client repeats a request that the server puts off.
	return errors.Join(fmt.Errorf("%w: a page: %s", ErrUnsupported, resp.Status), resp.Body.Close())
}
