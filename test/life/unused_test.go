package life_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// named is the setup of an informer with another identity.
func withName(name string) process.Setup {
	return func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.Name = name }
}

func TestDataThatNobodyUsesAreDroppedAfterAWeek(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f, path := source.New(t, source.ConfigMap("a")), testsupport.Path(t)
		for _, name := range []string{"kept", "work", "old"} {
			p := process.Launch(t, path, f, withName(name))
			switch name {
			case "kept":
				process.AddDurable(t, p, "agent")
			case "work":
				addReconciler(t, p, 1)
			}
			p.Run()
			bubble.Settle()
			p.Stop()
		}
		names := func(c *warmwatch.Cache) (all []string) {
			for _, u := range c.Status().Unused {
				all = append(all, u.Informer)
			}
			return all
		}
		const kept, old, work = `configmaps/v1 (typed) name="kept"`, `configmaps/v1 (typed) name="old"`, `configmaps/v1 (typed) name="work"`
		expect := func(when string, after time.Duration, setup process.Setup, want ...string) {
			t.Helper()
			p := process.Launch(t, path, f, setup)
			p.Run()
			time.Sleep(after)
			got := names(p.Cache)
			if diff := cmp.Diff(want, got, cmp.Transformer("sorted", func(s []string) map[string]bool {
				m := map[string]bool{}
				for _, v := range s {
					m[v] = true
				}
				return m
			})); diff != "" {
				t.Errorf("%s: unused (-want +got):\n%s", when, diff)
			}
			p.Stop()
		}
		expect("the first process without them", time.Hour, withName("new"), kept, old, work)
		time.Sleep(8 * 24 * time.Hour) // Nobody runs.
		expect("a process that uses one, at once", time.Minute, withName("old"), `configmaps/v1 (typed) name="new"`, kept, work)
		expect("long after the process before", time.Hour, withName("new"), kept, old, work)
		time.Sleep(8 * 24 * time.Hour)
		expect("a process that is too short", time.Minute, withName("new"), kept, old, work)
		expect("a long one", time.Hour, withName("new"), kept, work)
		expect("the next one", time.Minute, withName("new"), kept, work)

		p := process.Launch(t, path, f, withName("old"))
		p.Run()
		bubble.Settle()
		if st := p.Informer.Status(); st.Cause != warmwatch.CauseFirstStart {
			t.Errorf("the dropped one begins with %v", st.Cause)
		}
		p.Stop()
		expect("after the dropped one was used again", time.Hour, withName("new"), kept, old, work)
	})
}
