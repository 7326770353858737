package warmwatch

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestALeadIsOfAnotherHistoryOnceTheServerHasSaidSo for a minute, and as long as it goes on to say so.
func TestALeadIsOfAnotherHistoryOnceTheServerHasSaidSo(t *testing.T) {
	below := func() (string, error) { return "8", nil }
	for name, c := range map[string]struct {
		ask  func() (string, error)
		then func(*lead)
		want bool
	}{
		"it is below":                {ask: below, want: true},
		"it has come to it":          {ask: func() (string, error) { return "9", nil }},
		"it does not answer":         {ask: func() (string, error) { return "8", errors.New("no") }},
		"its versions have no order": {ask: func() (string, error) { return "x", nil }},
		"nobody can be asked":        {},
		"it has come to it since": {ask: below, then: func(l *lead) {
			l.setAsk(func() (string, error) { return "10", nil })
			foundFor(l, "9", 2*leadPause)
		}},
		"the file has seen something else since": {ask: below, then: func(l *lead) { foundFor(l, "10", time.Second) }},
		"it was not asked for a while":           {ask: below, then: func(*lead) { time.Sleep(2 * leadHolds) }},
		"it is asked once more after a while": {ask: below, then: func(l *lead) {
			time.Sleep(2 * leadHolds)
			foundFor(l, "9", 2*time.Second)
		}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l lead
				l.setAsk(c.ask)
				foundFor(&l, "9", leadAnswers*leadPause-time.Second)
				if l.isOfOtherHistory() {
					t.Error("decided early")
				}
				foundFor(&l, "9", 3*time.Second)
				if c.then != nil {
					c.then(&l)
				}
				if got := l.isOfOtherHistory(); got != c.want {
					t.Errorf("of another history: %t", got)
				}
			})
		})
	}
}

// foundFor is what attempts do that come each second.
func foundFor(l *lead, version string, d time.Duration) {
	for range d / time.Second {
		l.found(version)
		time.Sleep(time.Second)
		synctest.Wait()
	}
}
