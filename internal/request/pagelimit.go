package request

const (
	// usualPage is how many objects a page has that was asked for without a limit.
	usualPage = 500
	// pagesBeforeGrowth is how many pages in a row come whole before the next ones are larger.
	pagesBeforeGrowth = 8
)

// A PageLimit is how many objects of a list are asked for at once, where connections are cut. It
// is not safe for concurrent use.
type PageLimit struct {
	objects, most int64
	whole         int // Pages that have come whole since the last cut, or growth.
}

// NewPageLimit returns the limit of a list that begins with so many objects, and has at most so many in
// a page. 0 objects are no limit.
func NewPageLimit(objects, most int64) *PageLimit {
	return &PageLimit{objects: objects, most: max(objects, most)}
}

// Objects returns the limit of the next page; 0: none.
func (l *PageLimit) Objects() int64 { return l.objects }

// isReduced reports whether pages are smaller than they would be over a connection that lasts.
func (l *PageLimit) isReduced() bool { return l.objects > 0 && l.objects < l.most }

// Cut notes that connections do not last for a page.
func (l *PageLimit) Cut() {
	if l.objects == 0 {
		l.objects = l.most
	}
	l.objects, l.whole = max(l.objects/2, 1), 0
}

// Came notes that a page has come. What has cut connections may be over by now, so that pages become
// larger again.
func (l *PageLimit) Came() {
	if l.objects == 0 {
		return
	}
	if l.whole++; l.whole == pagesBeforeGrowth {
		l.objects, l.whole = min(2*l.objects, l.most), 0
	}
}
