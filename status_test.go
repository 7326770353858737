package warmwatch_test

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

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

// TestAStatusAsJSONSaysWhatIsWrong, with errors as strings.
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
		"Name": "agent", "Path": "cache.db", "MemoryOnly": true, "Err": "disk full",
		"Workqueues": nil, "Problems": nil,
		"SetAside": []any{map[string]any{"Path": "cache.db.corrupt-1", "Time": "2026-01-02T03:04:05Z", "Reason": "noise"}},
		"Informers": map[string]any{
			"pods": map[string]any{
				"Phase": "Live", "StartedFrom": "disk", "Cause": "Expired", "Reason": "too old", "ResourceVersion": "7", "LastContact": "2026-01-02T03:04:05Z",
				"Objects": 2.0, "Relists": 0.0, "Resumes": 0.0, "ServerErr": "refused", "Err": "corrupt", "Problems": []any{map[string]any{"Code": "Unreadable", "Message": "corrupt", "Since": "2026-01-02T03:04:05Z"}}, "Handlers": nil, "Reconcilers": nil,
			},
			"nodes": map[string]any{
				"Phase": "", "StartedFrom": "", "Cause": "", "Reason": "", "ResourceVersion": "",
				"Objects": 0.0, "Relists": 0.0, "Resumes": 0.0, "ServerErr": nil, "Err": nil, "Problems": nil, "Handlers": nil, "Reconcilers": nil,
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
	release := holdFile(t, path)
	defer release()
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.LockTimeout = -1 })
		if err := p.informer.SetTransform(func(obj any) (any, error) {
			if accessor(obj).GetName() == "bad" {
				return nil, errors.New("refused")
			}
			return obj, nil
		}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		if got := codesOf(p.cache.Status().Problems); !slices.Equal(got, []warmwatch.Code{warmwatch.CodeLocked}) {
			t.Errorf("the file is held: %q", got)
		}
		begun := time.Now()
		f.put(configMap("bad"))
		f.setDown(errUnreachable)
		advance(time.Minute)
		st := p.informer.Status()
		if got, want := codesOf(st.Problems), []warmwatch.Code{warmwatch.CodeLocked, warmwatch.CodeRefused, warmwatch.CodeServerFails}; !slices.Equal(got, want) {
			t.Fatalf("%q, expected %q", got, want)
		}
		for _, problem := range st.Problems[1:] {
			if after := problem.Since.Sub(begun); after < 0 || after > time.Minute || problem.Message == "" {
				t.Errorf("%+v, it began at %v", problem, begun)
			}
		}
		f.setDown(nil)
		f.remove("bad")
		advance(time.Minute)
		if got := codesOf(p.informer.Status().Problems); slices.Contains(got, warmwatch.CodeServerFails) {
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
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		path := filled(t, f, nil)
		f.put(configMap("c"))
		f.hold = make(chan struct{})
		p := launch(t, path, f, nil)
		if rv := p.informer.LastSyncResourceVersion(); rv != "" {
			t.Errorf("before the start: %q", rv)
		}
		p.run()
		synctest.Wait()
		if rv := p.informer.LastSyncResourceVersion(); rv != "2" {
			t.Errorf("while the server is away: %q", rv)
		}
		close(f.hold)
		synctest.Wait()
		if rv := p.informer.LastSyncResourceVersion(); rv != "3" {
			t.Errorf("once it has answered: %q", rv)
		}
	})
}

// TestThePhaseUntilTheServerAnswers says whether there is something to resume.
func TestThePhaseUntilTheServerAnswers(t *testing.T) {
	for name, path := range map[string]func(*testing.T, *source) string{
		"with a file":    func(t *testing.T, f *source) string { return filled(t, f, isCluster("one", nil)) },
		"without a file": func(t *testing.T, _ *source) string { return testsupport.Path(t) },
	} {
		want := warmwatch.PhaseDisconnected
		if name == "without a file" {
			want = warmwatch.PhaseRelisting
		}
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"))
				path := path(t, f)
				answer := make(chan struct{})
				p := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
					o.ClusterID = func(context.Context) (string, error) {
						<-answer
						return "one", nil
					}
				})
				if phase := p.informer.Status().Phase; phase != warmwatch.PhaseLoading {
					t.Errorf("before Run: %s", phase)
				}
				p.run()
				advance(time.Minute)
				if phase := p.informer.Status().Phase; phase != want {
					t.Errorf("before the server has answered: %s", phase)
				}
				close(answer)
				settle()
				if phase := p.informer.Status().Phase; phase != warmwatch.PhaseLive {
					t.Errorf("afterwards: %s", phase)
				}
			})
		})
	}
}

// TestAStatusSaysWhoIsStillToldOfTheInitialList: its objects are not counted as undelivered.
func TestAStatusSaysWhoIsStillToldOfTheInitialList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		path := filled(t, f, nil)
		next := make(chan struct{})
		told := func(p *process, hang bool, want ...warmwatch.HandlerStatus) {
			t.Helper()
			got := p.informer.Status().Handlers
			for i := range got {
				if since := got[i].CallbackSince; since.IsZero() == hang || hang && time.Since(since) < time.Minute {
					t.Errorf("%s is called since %v", got[i].Name, since)
				}
				got[i].UndeliveredBytes, got[i].CallbackSince = 0, time.Time{}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("handlers (-want +got):\n%s", diff)
			}
		}
		p := launch(t, path, f, nil)
		hangs := &recorder{during: func(string) { <-next }}
		if _, err := p.informer.AddDurableEventHandler("d", hangs, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.informer.AddEventHandler(hangs); err != nil {
			t.Fatal(err)
		}
		plain := fmt.Sprintf("%T", hangs)
		told(p, false, warmwatch.HandlerStatus{Name: plain, InitialList: true}, warmwatch.HandlerStatus{Name: "d", Durable: true, InitialList: true})
		p.run()
		settle()
		told(p, true, warmwatch.HandlerStatus{Name: plain, InitialList: true, Callback: "ns/a"}, warmwatch.HandlerStatus{Name: "d", Durable: true, InitialList: true, Callback: "ns/a"})
		for range 4 { // The last objects of their lists.
			next <- struct{}{}
		}
		f.put(configMap("c"))
		settle()
		told(p, true, warmwatch.HandlerStatus{Name: plain, Undelivered: 1, Callback: "ns/c"}, warmwatch.HandlerStatus{Name: "d", Durable: true, Undelivered: 1, Callback: "ns/c"})
		close(next)
		settle()
		told(p, false, warmwatch.HandlerStatus{Name: plain}, warmwatch.HandlerStatus{Name: "d", Durable: true})
		p.stop()

		p = launch(t, path, f, nil)
		addDurable(t, p, "d") // It goes on where it stopped.
		p.run()
		settle()
		told(p, false, warmwatch.HandlerStatus{Name: "d", Durable: true})
	})
}

// TestCloseOfACacheWhoseFileIsDamagedSaysSo (S3), each time, and the next process begins anew.
func TestCloseOfACacheWhoseFileIsDamagedSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		path := testsupport.Path(t)
		f := newSource(t, configMap("a"))
		p := launch(t, path, f, nil).run()
		settle()
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		f.put(configMap("b"))
		settle()
		expectStore(t, p.informer, f)
		if st := p.cache.Status(); !st.MemoryOnly || !errors.Is(st.Err, persist.ErrCorrupt) {
			t.Errorf("%+v", st)
		}
		p.end()
		for range 2 {
			if err := p.cache.Close(); !errors.Is(err, persist.ErrCorrupt) {
				t.Errorf("Close returned %v", err)
			}
		}
		p.stopped = true
		p = launch(t, path, f, nil).run()
		settle()
		expectStore(t, p.informer, f)
		if st := p.cache.Status(); st.MemoryOnly || st.Err != nil || p.informer.Status().StartedFrom == "disk" {
			t.Errorf("the next process: %+v", st)
		}
	})
}

// TestAStartIsOneLineInTheLog: how it starts and why, with how many objects, and how old they are. A watch that could not be
// resumed is one more.
func TestAStartIsOneLineInTheLog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, configMap("a"), configMap("b")), testsupport.Path(t)
		for _, life := range []struct {
			name  string
			since func()
			want  []string
		}{
			{"of a new file", func() {}, []string{
				`"action"="relist" "cause"="FirstStart" "reason"="" "from"="server" "objects"=2`,
			}},
			{"that resumes", func() { advance(time.Hour) }, []string{
				`"action"="resume" "cause"="Resumed" "reason"="" "from"="disk" "objects"=2 "age"="1h2m0s"`,
			}},
			{"whose history is gone", func() { f.put(configMap("c")); f.compact() }, []string{
				`"from"="disk" "objects"=2 "age"="1h4m0s"`,
				`"msg"="Relisting" `,
			}},
		} {
			life.since()
			logger, logged := loggerOf(`"informer"=`)
			p := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
			p.run()
			settle()
			lines := logged()
			if !slices.EqualFunc(lines, life.want, strings.Contains) {
				t.Errorf("the start %s has logged %q", life.name, lines)
			}
			p.stop()
		}
	})
}

// TestAnInformerHasOneNameInTheLog, also in what client-go and a handler of watch errors log of it.
func TestAnInformerHasOneNameInTheLog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		logger, logged := loggerOf("Failed")
		f := newSource(t)
		f.setDown(errors.New("refused"))
		p := launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
		err := p.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
			klog.FromContext(ctx).Error(err, "Failed") // As client-go's default does.
		})
		if err != nil {
			t.Fatal(err)
		}
		p.run()
		advance(time.Minute)
		const name = "configmaps/v1 (typed)"
		if _, inStatus := p.cache.Status().Informers[name]; !inStatus {
			t.Errorf("the status has %v", p.cache.Status().Informers)
		}
		lines := logged()
		for _, line := range lines {
			if !strings.Contains(line, `"informer"="`+name+`"`) {
				t.Errorf("logged: %s", line)
			}
		}
		if len(lines) == 0 {
			t.Error("client-go has told of no error")
		}
	})
}
