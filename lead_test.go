package warmwatch

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
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
		"it has come to it since": {ask: below, then: func(l *lead) { // It is asked less often then.
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

// TestOneQuestionAtATime: a List may hang.
func TestOneQuestionAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lead
		var asked atomic.Int32
		hold := make(chan struct{})
		l.setAsk(func() (string, error) { asked.Add(1); <-hold; return "8", nil })
		foundFor(&l, "9", 10*leadPause)
		if n := asked.Load(); n != 1 {
			t.Errorf("%d questions at once", n)
		}
		close(hold)
		foundFor(&l, "9", time.Second)
	})
}

// TestAnAnswerIsOfTheVersionThatWasAskedFor, and not of one that was found meanwhile.
func TestAnAnswerIsOfTheVersionThatWasAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lead
		l.setAsk(func() (string, error) { time.Sleep(5 * time.Second); return "8", nil })
		foundFor(&l, "9", leadPause+2*time.Second) // Asked.
		foundFor(&l, "7", leadPause)               // Answered.
		if l.below != 0 {
			t.Errorf("%d answers below 7", l.below)
		}
	})
}

// TestAQuestionThatPanicsIsNotPending: the next one is asked, where panics do not end the program.
func TestAQuestionThatPanicsIsNotPending(t *testing.T) {
	defer func(crash bool) { utilruntime.ReallyCrash = crash }(utilruntime.ReallyCrash)
	utilruntime.ReallyCrash = false
	synctest.Test(t, func(t *testing.T) {
		var l lead
		asked := 0
		l.setAsk(func() (string, error) { asked++; panic("a ListerWatcher that panics") })
		foundFor(&l, "9", 3*leadPause+time.Second)
		if asked != 3 {
			t.Errorf("asked %d times, expected 3", asked)
		}
	})
}
