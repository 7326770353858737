package life_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/go-logr/logr/funcr"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// TestTheLogAndTheStatusNameWhatDoesNotReturn: each callback, and the oldest reconcile of each reconciler, is an error once a minute.
func TestTheLogAndTheStatusNameWhatDoesNotReturn(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		logger, logged := testsupport.LoggerOf("has not returned")
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
		w := addReconciler(t, p, 1)
		hang := make(chan struct{})
		w.set(func(context.Context, string) error { <-hang; return nil })
		process.AddDurable(t, p, "slow").During = func(string) { <-hang }
		process.AddDurable(t, p, "quick").During = func(string) { time.Sleep(hangs / 2) }
		began := time.Now()
		p.Run()
		time.Sleep(hangs / 2)
		if lines := logged(); len(lines) > 0 {
			t.Errorf("logged at once: %q", lines)
		}
		for minute := range 3 {
			time.Sleep(hangs)
			if minute == 0 {
				time.Sleep(hangs)
			}
			lines := logged()
			if want := 2 + 2*minute; len(lines) != want {
				t.Errorf("logged, expected %d: %q", want, lines)
				break // What hangs is to end.
			}
			for n, what := range []string{`"handler"="slow"`, `"reconciler"="r"`} {
				line := lines[len(lines)-2+n]
				if !strings.Contains(line, what+` "object"="ns/a" "running"=`) || strings.Contains(line, `"level"=`) { // Errors have none.
					t.Errorf("logged: %s", line)
				}
			}
		}
		for _, h := range p.Informer.Status().Handlers {
			if slow := h.Name == "slow"; slow != (h.Callback == "ns/a") || slow != (!h.CallbackSince.IsZero() && h.CallbackSince.Sub(began) < hangs) {
				t.Errorf("status: %+v", h)
			}
		}
		close(hang)
		bubble.Settle()
		if h := p.Informer.Status().Handlers; h[1].Callback != "" || !h[1].CallbackSince.IsZero() {
			t.Errorf("afterwards: %+v", h)
		}
		hang = make(chan struct{})
		f.Put(source.ConfigMap("a"))
		time.Sleep(3 * hangs)
		close(hang)
		bubble.Settle()
		if lines := logged(); len(lines) != 10 { // Of the next callback and the next reconcile.
			t.Errorf("logged: %q", lines)
		}
	})
}

// hangs is how long a callback runs before it is logged.
const hangs = time.Minute

// TestWaitForHandlerSync waits for each handler that was not notified of all objects, unless it is removed.
func TestWaitForHandlerSync(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		other, err := p.Cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps, Name: "never runs"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.AddEventHandler(&recorder.Recorder{}); err != nil {
			t.Fatal(err)
		}
		waited := func(patience time.Duration) bool {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return p.Cache.WaitForHandlerSync(ctx)
		}
		if !waited(time.Second) {
			t.Error("it waits for an informer that does not run")
		}
		p.Run()
		bubble.Settle()
		slow := &recorder.Recorder{During: func(string) { time.Sleep(time.Minute) }}
		if _, err := p.Informer.AddEventHandler(slow); err != nil {
			t.Fatal(err)
		}
		if waited(time.Second) {
			t.Error("it does not wait for a handler")
		}
		if !waited(time.Hour) {
			t.Error("the handler has not synced")
		}
		slow.Expect(t, "add ns/a@1 initial")
		_, hung, release := addHung(t, p, "hangs", "add ns/a@1 initial")
		go func() {
			time.Sleep(time.Minute)
			process.Remove(t, p, hung)
		}()
		if waited(time.Second) || !waited(time.Hour) {
			t.Error("it waits for a handler that was removed, or not for one that was not")
		}
		close(release)
		if !waited(time.Second) {
			t.Error("it waits although all have synced")
		}
	})
}

// hung is a durable handler that hangs in one callback until it is released.
func addHung(t *testing.T, p *process.Process, name, event string) (r *recorder.Recorder, registration cache.ResourceEventHandlerRegistration, release chan struct{}) {
	t.Helper()
	release = make(chan struct{})
	r = &recorder.Recorder{During: func(e string) {
		if e == event {
			<-release
		}
	}}
	registration, err := p.Informer.AddDurableEventHandler(name, r, warmwatch.DurableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r, registration, release
}

func TestThePanicOfADurableHandlerIsLoggedWithItsDeltaAndTheWayPast(t *testing.T) {
	defer func(crash bool) { utilruntime.ReallyCrash = crash }(utilruntime.ReallyCrash)
	utilruntime.ReallyCrash = false
	bubble.Run(t, func(t *testing.T) {
		var mu sync.Mutex
		var lines []string
		logger := funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(args, "Observed a panic") {
				lines = append(lines, args)
			}
		}, funcr.Options{})
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		p := process.Launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = &logger })
		panics := func(event string) {
			if strings.HasPrefix(event, "add ns/b") || strings.HasPrefix(event, "delete") {
				panic("the handler's")
			}
		}
		if _, err := p.Informer.AddDurableEventHandler("d", &recorder.Recorder{During: panics}, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Informer.AddEventHandler(&recorder.Recorder{During: panics}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		f.Put(source.ConfigMap("a"))
		f.Remove("a")
		bubble.Settle()
		mu.Lock()
		defer mu.Unlock()
		durable := 0
		for _, line := range lines {
			named := strings.Contains(line, `"handler"="d"`)
			if named {
				durable++
			}
			if got := strings.Contains(line, "ForgetDurable"); got != named {
				t.Errorf("names the way past: %v, expected %v: %s", got, named, line)
			}
			added := strings.Contains(line, `"key"="ns/b"`) && strings.Contains(line, `"type"="Added"`)
			deleted := strings.Contains(line, `"key"="ns/a"`) && strings.Contains(line, `"type"="Deleted"`)
			if !added && !deleted {
				t.Errorf("does not say at which delta: %s", line)
			}
		}
		if len(lines) != 4 || durable != 2 {
			t.Errorf("%d panics were logged, %d of the durable handler, expected 4 and 2: %s", len(lines), durable, fmt.Sprint(lines))
		}
	})
}

// TestTheLogNamesAHandlerThatHoldsUpTheStop, so that an operator knows why a program does
// not end. A handler that was removed in its callback holds it up, too.
func TestTheLogNamesAHandlerThatHoldsUpTheStop(t *testing.T) {
	t.Run("that is added", func(t *testing.T) { testTheLogNamesAHandler(t, false) })
	t.Run("that was removed", func(t *testing.T) { testTheLogNamesAHandler(t, true) })
}

func testTheLogNamesAHandler(t *testing.T, removed bool) {
	bubble.Run(t, func(t *testing.T) {
		logger, logged := testsupport.LoggerOf("has not returned")
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
		release := make(chan struct{})
		handles := map[string]cache.ResourceEventHandlerRegistration{}
		for name, during := range map[string]func(string){"slow": func(string) { <-release }, "quick": nil} {
			h, err := p.Informer.AddDurableEventHandler(name, &recorder.Recorder{During: during}, warmwatch.DurableOptions{})
			if err != nil {
				t.Fatal(err)
			}
			handles[name] = h
		}
		p.Run()
		bubble.Settle()
		if removed {
			if err := p.Informer.RemoveEventHandler(handles["slow"]); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			time.Sleep(2 * hangs)
			close(release)
		}()
		p.Stop()
		waiting := logged()
		if len(waiting) == 0 {
			t.Error("nothing was logged")
		}
		for _, line := range waiting {
			if !strings.Contains(line, `"handler"="slow" "object"="ns/a" "running"=`) {
				t.Errorf("the log has %q", line)
			}
		}
	})
}

// TestWhatIsLoggedOfAHandlerNamesWhatTheInformerLists, also of one whose informer learns it when it runs.
func TestWhatIsLoggedOfAHandlerNamesWhatTheInformerLists(t *testing.T) {
	defer func(crash bool) { utilruntime.ReallyCrash = crash }(utilruntime.ReallyCrash)
	utilruntime.ReallyCrash = false
	lines := make(chan string, 1)
	logger := funcr.New(func(_, args string) {
		if strings.Contains(args, "Observed a panic") {
			lines <- args
		}
	}, funcr.Options{})
	api := httpserver.New(t, "one")
	a := process.NewAgent(t, testsupport.Path(t), api, func(o *warmwatch.Options) { o.Logger = &logger })
	defer a.Stop()
	informer := a.Make(a.ConfigMaps("ns", process.NoTweak), &corev1.ConfigMap{})
	if _, err := informer.AddEventHandler(&recorder.Recorder{During: func(string) { panic("the handler's") }}); err != nil {
		t.Fatal(err)
	}
	a.Run(informer)
	if line := <-lines; !strings.Contains(line, `"informer"="configmaps/v1 (typed) `) {
		t.Errorf("logged: %s", line)
	}
}
