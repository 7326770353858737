package main

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/test/e2e/link"
)

// badLink is between agents and the API server.
type badLink struct {
	name      string
	kilobytes int // A second.
	millis    int // How much later comes what the server sends.
	cut       bool
}

const cutPeriod = 20 * time.Second

// links measures starts over bad links. Over one that is cut there are so many Pods that a
// stream of them takes longer than the link lasts.
func (s *suite) links(ctx context.Context) error {
	// The server has nothing else to do.
	if err := s.startControlPlane(ctx); err != nil {
		return err
	}
	narrow, wide := badLink{report.OverNarrowLink, 16, 300, false}, badLink{report.OverLink, 1250, 50, false}
	if s.options.Short {
		s.skip("links of 128 kbit/s, and links that are cut: left out by SHORT=1")
		return s.measurePlans(ctx, []startPlan{{"pods", fewPods, 1, &wide}})
	}
	plans := []startPlan{{"pods", 100, 1, &narrow}, {"pods", 400, 1, narrow.thatIsCut()}, {"pods", 1000, 2, &wide}}
	if s.varied {
		s.skip("a link of 10 Mbit/s that is cut, with varied Pods: others show it")
	} else {
		plans = append(plans, startPlan{"pods", 10_000, 1, wide.thatIsCut()})
	}
	return s.measurePlans(ctx, plans)
}

func (l badLink) thatIsCut() *badLink {
	l.name, l.cut = l.name+report.CutLink, true
	return &l
}

// open returns the link to an API server. The caller calls Down at the end.
func (l badLink) open(server *rest.Config) (*link.Link, error) {
	opened, err := link.To(server)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(opened.Bandwidth(l.kilobytes), opened.Latency(l.millis)); err != nil {
		opened.Down()
		return nil, err
	}
	return opened, nil
}
