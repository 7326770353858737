package request

const (
	// usualPage is the number of objects in a page without a limit.
	usualPage = 500
	// pagesBeforeGrowth is how many pages in a row come whole before the next ones are larger.
	pagesBeforeGrowth = 8
)

// A pageLimit is how many objects of a list are asked for at once, where connections are cut. It
// is not safe for concurrent use.
type pageLimit struct {
	objects int64 // In the next page. 0: no limit.
	most    int64 // In any page.
	whole   int   // Pages that have come whole since the last cut or growth.
}

// newPageLimit returns the limit of a list whose first page has so many objects. 0 objects are no limit.
func newPageLimit(objects int64) *pageLimit {
	return &pageLimit{objects: objects, most: max(objects, usualPage)}
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

// came notes that a page has come. After some of them pages become larger again: connections may not be cut any more.
func (l *pageLimit) came() {
	if l.objects == 0 {
		return
	}
	if l.whole++; l.whole == pagesBeforeGrowth {
		l.objects, l.whole = min(2*l.objects, l.most), 0
	}
}
