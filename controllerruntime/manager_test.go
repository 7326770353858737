package controllerruntime

import (
	"testing"
	"time"
)

// TestWhenAllThatAManagerRunsHasStopped: where the time is over, Start may return nil.
func TestWhenAllThatAManagerRunsHasStopped(t *testing.T) {
	for _, c := range []struct {
		took, grace time.Duration
		want        bool
	}{
		{0, 30 * time.Second, true},
		{20 * time.Second, 30 * time.Second, true},
		{30*time.Second - time.Millisecond, 30 * time.Second, false}, // Start has seen the end of its context earlier.
		{31 * time.Second, 30 * time.Second, false},
		{0, 0, false},
		{time.Hour, -1, true},
	} {
		if got := allStopped(c.took, c.grace); got != c.want {
			t.Errorf("%v of %v: %t", c.took, c.grace, got)
		}
	}
}
