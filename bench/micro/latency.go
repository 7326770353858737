package micro

import (
	"context"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Clock measures how long updates of known times take to reach a handler.
type Clock struct {
	*Fixture

	begin  time.Time // Of the present rate; written while no update is on its way.
	period time.Duration
	first  int // Number of its first update.
	millis []float64
}

// NewClock starts an informer like New.
func NewClock(ctx context.Context, o Options) (*Clock, error) {
	c := &Clock{}
	var err error
	c.Fixture, err = newFixture(ctx, o, NewSource(o.Objects), c.heard)
	return c, err
}

// heard is called by the handler.
func (c *Clock) heard(pod *corev1.Pod) {
	if version, err := strconv.Atoi(pod.ResourceVersion); err == nil {
		due := c.begin.Add(time.Duration(version-firstVersion-1-c.first) * c.period)
		c.millis = append(c.millis, float64(time.Since(due))/float64(time.Millisecond))
	}
}

// Measure sends n updates at a rate, and returns for each the milliseconds from
// when it was due to when the handler was called. An informer that falls behind
// does not get fewer of them.
func (c *Clock) Measure(ctx context.Context, n, perSecond int) ([]float64, error) {
	c.first, c.millis = c.Source.Updates(), make([]float64, 0, n)
	c.period = time.Second / time.Duration(perSecond)
	c.begin = time.Now().Add(10 * time.Millisecond) // Before the handler hears of the first one.
	total := c.first + n
	c.Source.SendPaced(n, c.begin, c.period)
	if err := c.await(ctx, int64(total)); err != nil {
		return nil, err
	}
	return c.millis, nil
}
