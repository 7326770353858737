package life_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// events returns the timeline as lines: code, cause, handler, numbers that are not times or sizes.
func events(c *warmwatch.Cache) (lines []string) {
	for _, e := range c.Timeline() {
		line := string(e.Code)
		for _, s := range []string{e.Cause, e.Handler} {
			if s != "" {
				line += " " + s
			}
		}
		for _, name := range []string{"objects", "added", "updated", "deleted"} {
			if n, ok := e.Numbers[name]; ok {
				line += fmt.Sprintf(" %s=%v", name, n)
			}
		}
		if e.Times > 1 {
			line += fmt.Sprintf(" ×%d", e.Times)
		}
		lines = append(lines, line)
	}
	return lines
}

func TestTheTimelineHasWhatHappenedInThisProcessAndBefore(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		path := testsupport.Path(t)
		p := process.Launch(t, path, f, nil)
		process.AddDurable(t, p, "agent")
		p.Run()
		f.Put(source.ConfigMap("c"))
		synctest.Wait()
		f.Compact()
		source.Relisted(f, func() {
			f.Put(source.ConfigMap("a", "changed"), source.ConfigMap("d"))
			f.Remove("b")
		})
		synctest.Wait()
		first := []string{
			"Opened", "Served FirstStart objects=2 added=2 updated=0 deleted=0", "CaughtUp",
			"StartedOver New agent", "ServerFails", "Relisted Expired objects=3 added=1 updated=1 deleted=1", "Recovered ServerFails",
		}
		if diff := cmp.Diff(first, events(p.Cache)); diff != "" {
			t.Errorf("first process (-want +got):\n%s", diff)
		}
		p.Stop()
		p = process.Launch(t, path, f, nil)
		p.Run()
		bubble.Settle()
		first = append(first, "Closed", "Opened", "Served Resumed objects=3", "Resumed", "CaughtUp")
		if diff := cmp.Diff(first, events(p.Cache)); diff != "" { // What the process before has done a moment ago is another event.
			t.Errorf("with the next process (-want +got):\n%s", diff)
		}
		p.Stop()

		time.Sleep(time.Hour)
		f.SetDown(errors.New("no route to host"))
		p = process.Launch(t, path, f, nil)
		p.Run()
		time.Sleep(time.Minute)
		f.SetDown(nil)
		time.Sleep(2 * time.Minute) // client-go's pause is up to a minute by then.
		second := append(first, "Closed", "Opened", "Served Resumed objects=3", "ServerFails", "Resumed", "Recovered ServerFails", "CaughtUp")
		if diff := cmp.Diff(second, events(p.Cache)); diff != "" {
			t.Errorf("with the second process (-want +got):\n%s", diff)
		}
		for i, e := range p.Cache.Timeline() {
			if e.Code == warmwatch.CodeOpened && (e.Numbers["fileBytes"] == 0) != (i == 0) { // A forgotten mount shows in each start.
				t.Errorf("opened with %v bytes", e.Numbers["fileBytes"])
			}
			if seconds, ok := e.Numbers["seconds"]; e.Code == warmwatch.CodeRecovered && e.Time.After(time.Now().Add(-10*time.Minute)) && (!ok || seconds < 55 || seconds > 125) {
				t.Errorf("the server was away for a minute: %+v", e)
			}
		}
	})
}

func TestTheTimelineCountsRepetitionsAndHasAnEnd(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil).Run()
		bubble.Settle()
		for i := range 7 {
			if i == 1 { // This one adds an object. Its entry has the numbers of the first.
				f.Lose(func() { f.Put(source.ConfigMap("b")) })
			}
			if err := p.Informer.Relist(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(25 * time.Second)
		}
		relists, entries := 0, 0
		for _, e := range p.Cache.Timeline() {
			if e.Code == warmwatch.CodeRelisted {
				if e.Numbers["added"] != 0 {
					t.Errorf("the numbers are not of the first time: %+v", e)
				}
				relists, entries = relists+max(e.Times, 1), entries+1
			}
		}
		if relists != 7 || entries < 3 || entries > 4 { // Each has those of a minute.
			t.Errorf("seven relists in three minutes: %v", events(p.Cache))
		}
		for range 250 {
			if err := p.Informer.Relist(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
		}
		if n := len(p.Cache.Timeline()); n != 200 {
			t.Errorf("it has %d events, expected 200", n)
		}
	})
}

func TestMetricsAreTheNumbersOfStatus(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		hold := make(chan struct{})
		process.AddDurable(t, p, "agent").During = func(event string) {
			if event == "add ns/c@3" {
				<-hold
			}
		}
		p.Run()
		time.Sleep(time.Second)
		f.Put(source.ConfigMap("c"), source.ConfigMap("a", "x"))
		f.Remove("b")
		f.Bookmark()
		time.Sleep(5 * time.Second)
		m := p.Cache.Metrics()
		st := p.Informer.Status()
		if len(m.Informers) != 1 || !m.Persistent || m.File.Bytes == 0 || m.File.Commits == 0 || m.File.PendingBytes > 0 {
			t.Fatalf("%+v", m)
		}
		i := m.Informers[0]
		if i.Resource != "configmaps" || i.Objects != 2 || !i.Live || i.Relists[warmwatch.CauseFirstStart] != 1 || i.CaughtUpAfter <= 0 || !i.LastContact.Equal(st.LastContact) {
			t.Errorf("%+v", i)
		}
		if diff := cmp.Diff(map[string]int64{"added": 1, "updated": 1, "deleted": 1, "bookmark": 1}, i.Events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if h := i.Handlers[0]; h.Undelivered != 3 || h.UndeliveredBytes == 0 || h.OldestUndelivered.IsZero() || h.CallbackSince.IsZero() || h.Restarts["New"] != 1 {
			t.Errorf("the handler that hangs: %+v", h)
		}
		close(hold)
		synctest.Wait()
		if h := p.Cache.Metrics().Informers[0].Handlers[0]; h.Undelivered != 0 || h.UndeliveredBytes != 0 || !h.OldestUndelivered.IsZero() || !h.CallbackSince.IsZero() {
			t.Errorf("the handler that has returned: %+v", h)
		}
	})
}
