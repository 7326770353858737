package reflector

import (
	"fmt"
	"time"
)

// endBookmarkPeriod is that of client-go (reflector.go, newInitialEventsEndBookmarkTicker).
const endBookmarkPeriod = 10 * time.Second

// endBookmark warns, as client-go's initialEventsEndBookmarkTicker does, if a stream sends
// nothing for a while, and not the bookmark that ends the initial events. A server that
// accepts sendInitialEvents and does not know it never sends that bookmark.
type endBookmark struct {
	*time.Ticker
	r         *Resumer
	begun     time.Time
	lastEvent time.Time // Zero if none came.
	warned    bool      // Since the last event.
}

func (r *Resumer) newEndBookmark() *endBookmark {
	return &endBookmark{Ticker: time.NewTicker(endBookmarkPeriod), r: r, begun: time.Now()}
}

// sawEvent notes that the stream has sent something.
func (b *endBookmark) sawEvent() {
	b.lastEvent = time.Now()
	b.takeBack()
}

// warnIfExpired is called when the Ticker ticks.
func (b *endBookmark) warnIfExpired() {
	err := fmt.Errorf("awaiting required bookmark event for initial events stream, no events received for %v", time.Since(b.begun))
	if !b.lastEvent.IsZero() {
		elapsed := time.Since(b.lastEvent)
		if elapsed < endBookmarkPeriod {
			return
		}
		err = fmt.Errorf("hasn't received required bookmark event marking the end of initial events stream, received last event %v ago", elapsed)
	}
	b.r.log.Info("Warning: event bookmark expired", "err", err)
	b.r.obs.AwaitingBookmark(err)
	b.warned = true
}

func (b *endBookmark) takeBack() {
	if b.warned {
		b.r.obs.AwaitingBookmark(nil)
	}
	b.warned = false
}

// stop is called when the stream is not read any more.
func (b *endBookmark) stop() {
	b.Stop()
	b.takeBack()
}
