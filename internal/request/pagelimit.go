package request

const (
	// usualPage is how many objects a page has that was asked for without a limit.
	usualPage = 500
	// pagesBeforeGrowth is how many pages in a row come whole before the next ones are larger.
	pagesBeforeGrowth = 8
)

// A pageLimit is how many objects of a list are asked for at once, where connections are cut. It
// is not safe for concurrent use.
type pageLimit struct {
	objects, most int64 // Of the next page, 0: no limit; and at most.
	whole         int   // Pages that have come whole since the last cut, or growth.
}

// newPageLimit returns the limit of a list that begins with so many objects, and has at most so many in
// a page. 0 objects are no limit.
func newPageLimit(objects, most int64) *pageLimit {
	return &pageLimit{objects: objects, most: max(objects, most)}
}

// isReduced reports whether pages are smaller than they would be over a connection that lasts.
func (l *pageLimit) isReduced() bool { return l.objects > 0 && l.objects < l.most }

// cut notes that connections do not last for a page.
func (l *pageLimit) cut() {
	if l.objects == 0 {
		l.objects = l.most
	}
	l.objects, l.whole = max(l.objects/2, 1), 0
}

// came notes that a page has come. What has cut connections may be over by now, so that pages become
// larger again.
func (l *pageLimit) came() {
	if l.objects == 0 {
		return
	}
	if l.whole++; l.whole == pagesBeforeGrowth {
		l.objects, l.whole = min(2*l.objects, l.most), 0
	}
}
