package warmwatch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

// hung is a durable handler that hangs in one callback until it is released.
func addHung(t *testing.T, p *process, name, event string) (r *recorder, registration cache.ResourceEventHandlerRegistration, release chan struct{}) {
	t.Helper()
	release = make(chan struct{})
	r = &recorder{during: func(e string) {
		if e == event {
			<-release
		}
	}}
	registration, err := p.informer.AddDurableEventHandler(name, r, warmwatch.DurableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r, registration, release
}

func remove(t *testing.T, p *process, registration cache.ResourceEventHandlerRegistration) {
	t.Helper()
	if err := p.informer.RemoveEventHandler(registration); err != nil {
		t.Fatal(err)
	}
}

// TestANameIsFreeWhenItsCallbackHasReturned: what that finishes counts for the next handler.
func TestANameIsFreeWhenItsCallbackHasReturned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, nil)
		first, registration, release := addHung(t, p, "d", "update ns/a@1→2")
		p.run()
		settle()
		f.put(configMap("a"), configMap("b"))
		f.remove("a")
		settle()
		remove(t, p, registration)
		second := &recorder{}
		if _, err := p.informer.AddDurableEventHandler("d", second, warmwatch.DurableOptions{}); !errors.Is(err, warmwatch.ErrInUse) {
			t.Errorf("a handler beside the one before: %v", err)
		}
		if err := p.informer.ForgetDurable("d"); !errors.Is(err, warmwatch.ErrInUse) {
			t.Errorf("forget: %v", err)
		}
		close(release)
		settle()
		if _, err := p.informer.AddDurableEventHandler("d", second, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		first.expect(t, "add ns/a@1 initial", "update ns/a@1→2")
		second.expect(t, "add ns/b@3", "delete ns/a@4")
	})
}

func TestThePanicOfADurableHandlerIsLoggedWithItsDeltaAndTheWayPast(t *testing.T) {
	defer func(crash bool) { utilruntime.ReallyCrash = crash }(utilruntime.ReallyCrash)
	utilruntime.ReallyCrash = false
	bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var lines []string
		logger := funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(args, "Observed a panic") {
				lines = append(lines, args)
			}
		}, funcr.Options{})
		f := newSource(t, configMap("a"), configMap("b"))
		p := launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = &logger })
		panics := func(event string) {
			if strings.HasPrefix(event, "add ns/b") || strings.HasPrefix(event, "delete") {
				panic("the handler's")
			}
		}
		if _, err := p.informer.AddDurableEventHandler("d", &recorder{during: panics}, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.informer.AddEventHandler(&recorder{during: panics}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		f.put(configMap("a"))
		f.remove("a")
		settle()
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
	bubble(t, func(t *testing.T) {
		logger, logged := loggerOf("Still waiting")
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
		release := make(chan struct{})
		handles := map[string]cache.ResourceEventHandlerRegistration{}
		for name, during := range map[string]func(string){"slow": func(string) { <-release }, "quick": nil} {
			h, err := p.informer.AddDurableEventHandler(name, &recorder{during: during}, warmwatch.DurableOptions{})
			if err != nil {
				t.Fatal(err)
			}
			handles[name] = h
		}
		p.run()
		settle()
		if removed {
			if err := p.informer.RemoveEventHandler(handles["slow"]); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			time.Sleep(time.Minute)
			close(release)
		}()
		p.stop()
		waiting := logged()
		if len(waiting) != 1 || !strings.Contains(waiting[0], `"handler"="slow" "object"="ns/a" "running"=`) {
			t.Errorf("the log has %q", waiting)
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
	c, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{Logger: &logger})
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, cache: c, config: api.Config()}
	a.config.Wrap(c.WrapTransport)
	a.ctx, a.cancel = context.WithCancel(t.Context())
	defer a.stop()
	informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
	if _, err := informer.AddEventHandler(&recorder{during: func(string) { panic("the handler's") }}); err != nil {
		t.Fatal(err)
	}
	a.run(informer)
	if line := <-lines; !strings.Contains(line, `"informer"="configmaps/v1 (typed) `) {
		t.Errorf("logged: %s", line)
	}
}

// loggerOf returns a logger, and the lines with this text that it has logged.
func loggerOf(text string) (logger *klog.Logger, logged func() []string) {
	var mu sync.Mutex
	var lines []string
	l := funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(args, text) {
			lines = append(lines, args)
		}
	}, funcr.Options{})
	return &l, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(lines)
	}
}
