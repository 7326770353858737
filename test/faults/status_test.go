package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
	"github.com/warmwatch/warmwatch/persist"
)

// TestAStatusAsJSONSaysWhatIsWrong in Problems, without errors.
func TestAStatusAsJSONSaysWhatIsWrong(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	st := warmwatch.Status{
		Name: "agent", Path: "cache.db", MemoryOnly: true, Err: errors.New("disk full"),
		SetAside: []warmwatch.SetAside{{Path: "cache.db.corrupt-1", Time: at, Reason: "noise"}},
		Informers: map[string]warmwatch.InformerStatus{
			"pods": {Phase: warmwatch.PhaseLive, StartedFrom: "disk", Cause: warmwatch.CauseExpired, Reason: "too old", ResourceVersion: "7", LastContact: at, Objects: 2, ServerErr: errors.New("refused"), Err: errors.New("corrupt"),
				Problems: []warmwatch.Problem{{Code: warmwatch.CodeUnreadable, Message: "corrupt", Since: at}}},
			"nodes": {},
		},
	}
	want := map[string]any{
		"Name": "agent", "Path": "cache.db", "MemoryOnly": true,
		"Unused": nil, "Workqueues": nil, "Problems": nil,
		"SetAside": []any{map[string]any{"Path": "cache.db.corrupt-1", "Time": "2026-01-02T03:04:05Z", "Reason": "noise"}},
		"Informers": map[string]any{
			"pods": map[string]any{
				"Phase": "Live", "StartedFrom": "disk", "Cause": "Expired", "Reason": "too old", "ResourceVersion": "7", "LastContact": "2026-01-02T03:04:05Z",
				"Objects": 2.0, "Relists": 0.0, "Resumes": 0.0, "Problems": []any{map[string]any{"Code": "Unreadable", "Message": "corrupt", "Since": "2026-01-02T03:04:05Z"}}, "Handlers": nil, "Reconcilers": nil,
			},
			"nodes": map[string]any{
				"Phase": "", "StartedFrom": "", "Cause": "", "Reason": "", "ResourceVersion": "",
				"Objects": 0.0, "Relists": 0.0, "Resumes": 0.0, "Problems": nil, "Handlers": nil, "Reconcilers": nil,
			},
		},
	}
	for name, v := range map[string]any{"a value": st, "a pointer": &st} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

// codesOf returns the codes of what is wrong.
func codesOf(problems []warmwatch.Problem) (codes []warmwatch.Code) {
	for _, p := range problems {
		codes = append(codes, p.Code)
	}
	return codes
}

// TestProblemsHaveCodes, and when they began, while they last.
func TestProblemsHaveCodes(t *testing.T) {
	path := testsupport.Path(t)
	release := process.Hold(t, path)
	defer release()
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.LockTimeout = -1 })
		if err := p.Informer.SetTransform(func(obj any) (any, error) {
			if source.Meta(obj).GetName() == "bad" {
				return nil, errors.New("refused")
			}
			return obj, nil
		}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		if got := codesOf(p.Cache.Status().Problems); !slices.Equal(got, []warmwatch.Code{warmwatch.CodeLocked}) {
			t.Errorf("the file is held: %q", got)
		}
		begun := time.Now()
		f.Put(source.ConfigMap("bad"))
		f.SetDown(source.ErrUnreachable)
		bubble.Advance(time.Minute)
		st := p.Informer.Status()
		if got, want := codesOf(st.Problems), []warmwatch.Code{warmwatch.CodeLocked, warmwatch.CodeRefused, warmwatch.CodeServerFails}; !slices.Equal(got, want) {
			t.Fatalf("%q, expected %q", got, want)
		}
		for _, problem := range st.Problems[1:] {
			if after := problem.Since.Sub(begun); after < 0 || after > time.Minute || problem.Message == "" {
				t.Errorf("%+v, it began at %v", problem, begun)
			}
		}
		f.SetDown(nil)
		f.Remove("bad")
		bubble.Advance(time.Minute)
		if got := codesOf(p.Informer.Status().Problems); slices.Contains(got, warmwatch.CodeServerFails) {
			t.Errorf("the server is there again: %q", got)
		}
	})
}

// TestAFileThatWasSetAsideIsInStatus, with where it is and why.
func TestAFileThatWasSetAsideIsInStatus(t *testing.T) {
	path := testsupport.Path(t)
	if err := os.WriteFile(path, []byte("noise"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := warmwatch.Open(t.Context(), path, warmwatch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	aside := c.Status().SetAside
	names, err := filepath.Glob(path + ".corrupt-*")
	if err != nil || len(names) != 1 || len(aside) != 1 || aside[0].Path != names[0] || aside[0].Time.IsZero() || aside[0].Reason == "" {
		t.Errorf("%v, %v, the status has %+v", names, err, aside)
	}
	if err := c.Status().Err; err != nil {
		t.Errorf("degraded: %v", err)
	}
}

// TestLastSyncResourceVersionIsTheCheckpointsWhileTheServerIsAway: objects are served
// at that version.
func TestLastSyncResourceVersionIsTheCheckpointsWhileTheServerIsAway(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		path := process.Filled(t, f, nil)
		f.Put(source.ConfigMap("c"))
		f.Hold = make(chan struct{})
		p := process.Launch(t, path, f, nil)
		if rv := p.Informer.LastSyncResourceVersion(); rv != "" {
			t.Errorf("before the start: %q", rv)
		}
		p.Run()
		synctest.Wait()
		if rv := p.Informer.LastSyncResourceVersion(); rv != "2" {
			t.Errorf("while the server is away: %q", rv)
		}
		close(f.Hold)
		synctest.Wait()
		if rv := p.Informer.LastSyncResourceVersion(); rv != "3" {
			t.Errorf("once it has answered: %q", rv)
		}
	})
}

// TestThePhaseUntilTheServerAnswers says whether there is something to resume.
func TestThePhaseUntilTheServerAnswers(t *testing.T) {
	for name, path := range map[string]func(*testing.T, *source.Source) string{
		"with a file": func(t *testing.T, f *source.Source) string {
			return process.Filled(t, f, process.IsCluster("one", nil))
		},
		"without a file": func(t *testing.T, _ *source.Source) string { return testsupport.Path(t) },
	} {
		want := warmwatch.PhaseDisconnected
		if name == "without a file" {
			want = warmwatch.PhaseRelisting
		}
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"))
				path := path(t, f)
				answer := make(chan struct{})
				p := process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
					o.ClusterID = func(context.Context) (string, error) {
						<-answer
						return "one", nil
					}
				})
				if phase := p.Informer.Status().Phase; phase != warmwatch.PhaseLoading {
					t.Errorf("before Run: %s", phase)
				}
				p.Run()
				bubble.Advance(time.Minute)
				if phase := p.Informer.Status().Phase; phase != want {
					t.Errorf("before the server has answered: %s", phase)
				}
				close(answer)
				bubble.Settle()
				if phase := p.Informer.Status().Phase; phase != warmwatch.PhaseLive {
					t.Errorf("afterwards: %s", phase)
				}
			})
		})
	}
}

// TestAStatusSaysWhoStillGetsTheInitialList: its objects are not counted as undelivered.
func TestAStatusSaysWhoStillGetsTheInitialList(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		path := process.Filled(t, f, nil)
		next := make(chan struct{})
		expectHandlers := func(p *process.Process, hang bool, want ...warmwatch.HandlerStatus) {
			t.Helper()
			got := p.Informer.Status().Handlers
			for i := range got {
				if since := got[i].CallbackSince; since.IsZero() == hang || hang && time.Since(since) < time.Minute {
					t.Errorf("%s is called since %v", got[i].Name, since)
				}
				got[i].UndeliveredBytes, got[i].CallbackSince, got[i].OldestUndelivered, got[i].Restarts = 0, time.Time{}, time.Time{}, nil
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("handlers (-want +got):\n%s", diff)
			}
		}
		p := process.Launch(t, path, f, nil)
		hangs := &recorder.Recorder{During: func(string) { <-next }}
		if _, err := p.Informer.AddDurableEventHandler("d", hangs, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Informer.AddEventHandler(hangs); err != nil {
			t.Fatal(err)
		}
		plain := fmt.Sprintf("%T", hangs)
		expectHandlers(p, false, warmwatch.HandlerStatus{Name: plain, InitialList: true}, warmwatch.HandlerStatus{Name: "d", Durable: true, InitialList: true})
		p.Run()
		bubble.Settle()
		expectHandlers(p, true, warmwatch.HandlerStatus{Name: plain, InitialList: true, Callback: "ns/a"}, warmwatch.HandlerStatus{Name: "d", Durable: true, InitialList: true, Callback: "ns/a"})
		for range 4 { // The last objects of their lists.
			next <- struct{}{}
		}
		f.Put(source.ConfigMap("c"))
		bubble.Settle()
		expectHandlers(p, true, warmwatch.HandlerStatus{Name: plain, Undelivered: 1, Callback: "ns/c"}, warmwatch.HandlerStatus{Name: "d", Durable: true, Undelivered: 1, Callback: "ns/c"})
		close(next)
		bubble.Settle()
		expectHandlers(p, false, warmwatch.HandlerStatus{Name: plain}, warmwatch.HandlerStatus{Name: "d", Durable: true})
		p.Stop()

		p = process.Launch(t, path, f, nil)
		process.AddDurable(t, p, "d") // It goes on where it stopped.
		p.Run()
		bubble.Settle()
		expectHandlers(p, false, warmwatch.HandlerStatus{Name: "d", Durable: true})
	})
}

// TestCloseOfACacheWhoseFileIsDamagedSaysSo (S3), each time, and the next process begins anew.
func TestCloseOfACacheWhoseFileIsDamagedSaysSo(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		path := testsupport.Path(t)
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, path, f, nil).Run()
		bubble.Settle()
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		f.Put(source.ConfigMap("b"))
		bubble.Settle()
		process.ExpectStore(t, p.Informer, f)
		if st := p.Cache.Status(); !st.MemoryOnly || !errors.Is(st.Err, persist.ErrCorrupt) {
			t.Errorf("%+v", st)
		}
		p.End()
		for range 2 {
			if err := p.Cache.Close(); !errors.Is(err, persist.ErrCorrupt) {
				t.Errorf("Close returned %v", err)
			}
		}
		p.Stopped = true
		p = process.Launch(t, path, f, nil).Run()
		bubble.Settle()
		process.ExpectStore(t, p.Informer, f)
		if st := p.Cache.Status(); st.MemoryOnly || st.Err != nil || p.Informer.Status().StartedFrom == "disk" {
			t.Errorf("the next process: %+v", st)
		}
	})
}

// TestAStartIsOneLineInTheLog: how it starts and why, with how many objects, and how old they are. A watch that could
// not be resumed is one more.
func TestAStartIsOneLineInTheLog(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f, path := source.New(t, source.ConfigMap("a"), source.ConfigMap("b")), testsupport.Path(t)
		for _, life := range []struct {
			name  string
			since func()
			want  []string
		}{
			{"of a new file", func() {}, []string{
				`"code"="Served" "cause"="FirstStart" "added"=2 "deleted"=0 "objects"=2 `,
			}},
			{"that resumes", func() { bubble.Advance(time.Hour) }, []string{
				`"code"="Served" "cause"="Resumed" "message"="from disk" "objects"=2 "secondsSinceContact"=`,
			}},
			{"whose history is gone", func() { f.Put(source.ConfigMap("c")); f.Compact() }, []string{
				`"code"="Served" "cause"="Resumed" "message"="from disk" "objects"=2 `,
				`"code"="Relisted" "cause"="Expired" "message"=`,
			}},
			{"whose server is away", func() { f.SetDown(source.ErrUnreachable) }, []string{
				`"code"="Served" "cause"="Resumed" "message"="from disk" "objects"=3 `,
				`"code"="ServerFails"`,
			}},
		} {
			life.since()
			logger, logged := testsupport.LoggerOf(`"informer"="configmaps/v1 (typed)" "code"=`)
			p := process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
			p.Run()
			bubble.Settle()
			lines := logged()
			if !slices.EqualFunc(lines, life.want, strings.Contains) {
				t.Errorf("the start %s has logged %q", life.name, lines)
			}
			p.Stop()
		}
	})
}

// TestAnInformerHasOneNameInTheLog, also in what client-go and a handler of watch errors log of it.
func TestAnInformerHasOneNameInTheLog(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		logger, logged := testsupport.LoggerOf("Failed")
		f := source.New(t)
		f.SetDown(errors.New("refused"))
		p := process.Launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
		err := p.Informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
			klog.FromContext(ctx).Error(err, "Failed") // As client-go's default does.
		})
		if err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Advance(time.Minute)
		const name = "configmaps/v1 (typed)"
		if _, inStatus := p.Cache.Status().Informers[name]; !inStatus {
			t.Errorf("the status has %v", p.Cache.Status().Informers)
		}
		lines := logged()
		for _, line := range lines {
			if !strings.Contains(line, `"informer"="`+name+`"`) {
				t.Errorf("logged: %s", line)
			}
		}
		if len(lines) == 0 {
			t.Error("client-go has reported no error")
		}
	})
}

// TestAStatusSaysThatAHandlerWithTooLargeABacklogStartsOver, also while its callback hangs.
func TestAStatusSaysThatAHandlerWithTooLargeABacklogStartsOver(t *testing.T) { // D6
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.MaxBacklogBytes = 10_000 })
		hang := make(chan struct{})
		defer close(hang)
		hangs := &recorder.Recorder{During: func(event string) {
			if strings.HasPrefix(event, "update") {
				<-hang
			}
		}}
		if _, err := p.Informer.AddDurableEventHandler("d", hangs, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		handler := func() warmwatch.HandlerStatus { return p.Informer.Status().Handlers[0] }
		f.Put(source.ConfigMap("a"))
		bubble.Settle()
		if h := handler(); h.InitialList || h.Undelivered != 1 {
			t.Errorf("with one update: %+v", h)
		}
		for range 100 {
			f.Put(source.ConfigMap("a"))
			bubble.Settle()
		}
		if h := handler(); !h.InitialList || h.Callback != "ns/a" {
			t.Errorf("with too many: %+v", h)
		}
	})
}

// TestAStatusSaysThatTheInitialListIsToCome, before the informer runs and while it waits for the server.
func TestAStatusSaysThatTheInitialListIsToCome(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		path := process.Filled(t, f, nil)
		f.SetDown(source.ErrUnreachable)
		p := process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.ServeStaleAfter = 0 })
		if _, err := p.Informer.AddEventHandler(&recorder.Recorder{}); err != nil {
			t.Fatal(err)
		}
		expect := func(when string) {
			t.Helper()
			if h := p.Informer.Status().Handlers; len(h) != 1 || !h[0].InitialList {
				t.Errorf("%s: %+v", when, h)
			}
		}
		expect("before Run")
		p.Run()
		bubble.Settle()
		expect("before HasSynced")
	})
}
