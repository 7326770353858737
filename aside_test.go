package warmwatch_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

// panicsAt is the program whose durable handler d panics when it is told of an event, after
// changes to three objects: "put b" or "remove b".
func panicsAt(event string, maxPanics int, changes []string) error {
	f := newSourceOf()
	f.put(configMap("a"), configMap("b"), configMap("c"))
	f.change(changes...)
	c, err := warmwatch.Open(context.Background(), os.Getenv("WARMWATCH_TEST_FILE"), warmwatch.Options{MaxPanics: maxPanics, CommitInterval: time.Hour, FullRelistEvery: -1})
	if err != nil {
		return err
	}
	informer, err := c.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps})
	if err != nil {
		return err
	}
	_, err = informer.AddDurableEventHandler("d", &recorder{during: func(e string) {
		if strings.HasPrefix(e, event) {
			panic("poison: " + e)
		}
	}})
	if err != nil {
		return err
	}
	endIfHanging()
	informer.RunWithContext(context.Background())
	return errors.New("Run has returned")
}

// panicsNew is panicsAt for an informer of NewInformer, which panics when it is told of anything.
func panicsNew(path, server string) error {
	c, err := warmwatch.Open(context.Background(), path, warmwatch.Options{MaxPanics: 1})
	if err != nil {
		return err
	}
	config := &rest.Config{Host: server}
	config.Wrap(c.WrapTransport)
	client := kubernetes.NewForConfigOrDie(config)
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", "ns", fields.Everything())
	informer := c.NewInformer(lw, &corev1.ConfigMap{}, 0, cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc}).(*warmwatch.SharedIndexInformer)
	if _, err = informer.AddDurableEventHandler("d", &recorder{during: func(e string) { panic("poison: " + e) }}); err != nil {
		return err
	}
	endIfHanging()
	informer.RunWithContext(context.Background())
	return errors.New("Run has returned")
}

func init() {
	programs["panicsNew"] = func([]string) error {
		return panicsNew(os.Getenv("WARMWATCH_TEST_FILE"), os.Getenv("WARMWATCH_TEST_SERVER"))
	}
	programs["panics"] = func([]string) error {
		maxPanics, _ := strconv.Atoi(os.Getenv("WARMWATCH_TEST_MAX"))
		return panicsAt(os.Getenv("WARMWATCH_TEST_EVENT"), maxPanics, strings.Split(os.Getenv("WARMWATCH_TEST_CHANGES"), ","))
	}
}

// change makes changes that are written as "put b" or "remove b".
func (f *source) change(changes ...string) {
	for _, c := range changes {
		switch verb, name, _ := strings.Cut(c, " "); verb {
		case "put":
			f.put(configMap(name))
		case "remove":
			f.remove(name)
		}
	}
}

// panicking runs processes that die in the same event.
func panicking(t *testing.T, processes, maxPanics int, path, event string, changes ...string) {
	t.Helper()
	for range processes {
		out := crash(t, "panics", "WARMWATCH_TEST_FILE="+path, "WARMWATCH_TEST_EVENT="+event,
			fmt.Sprintf("WARMWATCH_TEST_MAX=%d", maxPanics), "WARMWATCH_TEST_CHANGES="+strings.Join(changes, ","))
		if !strings.Contains(out, "poison: "+event) {
			t.Fatalf("the process did not die in %s:\n%s", event, out)
		}
	}
}

// delivered runs a process in which the durable handler does not panic on a file that two
// processes have died with, expects what it is told and then that as many objects are set aside,
// and goes on with next.
func delivered(t *testing.T, path string, maxPanics int, changes, want []string, aside int, next func(*testing.T, *source, *process, *recorder)) {
	t.Helper()
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
		f.change(changes...)
		p := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
			o.MaxPanics, o.FullRelistEvery = maxPanics, -1
		})
		d := addDurable(t, p, "d")
		p.run()
		settle()
		d.expect(t, want...)
		expectAside(t, p, aside)
		if next != nil {
			next(t, f, p, d)
		}
	})
}

// expectAside expects that b is set aside, or nothing.
func expectAside(t *testing.T, p *process, want int) {
	t.Helper()
	if got := p.informer.Status().Handlers[0].SetAside; !slices.Equal(got, slices.Repeat([]string{"ns/b"}, want)) {
		t.Errorf("%q are set aside, expected %d", got, want)
	}
}

func TestAnObjectOnWhichADurableHandlerPanicsIsSetAsideAfterFiveProcesses(t *testing.T) {
	path := testsupport.Path(t)
	panicking(t, 4, 0, path, "add ns/b")
	delivered(t, path, 0, nil, []string{"add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial"}, 0, nil)

	path = testsupport.Path(t)
	panicking(t, 5, 0, path, "add ns/b")
	delivered(t, path, 0, nil, []string{"add ns/a@1 initial", "add ns/c@3 initial"}, 1, func(t *testing.T, f *source, p *process, d *recorder) {
		f.change("put b", "put a")
		settle()
		d.expect(t, "update ns/a@1→5") // Nothing of b.
		redeliver(t, p)
		d.expect(t, "add ns/b@4")
		expectAside(t, p, 0)
		f.change("put b")
		settle()
		d.expect(t, "update ns/b@4→6") // The old object is one that it has seen.
	})
}

// TestWhatIsSetAsideIsRedeliveredByANewInformer, which has its file only once it knows its server: the demand
// may come before that.
func TestWhatIsSetAsideIsRedeliveredByANewInformer(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	out := crash(t, "panicsNew", "WARMWATCH_TEST_FILE="+path, "WARMWATCH_TEST_SERVER="+api.Config().Host)
	if !strings.Contains(out, "poison") {
		t.Fatalf("the process did not die in the handler:\n%s", out)
	}
	for _, c := range []struct {
		forget, redeliver bool
		aside             int
		want              []string
	}{
		{}, // It is set aside now, which is logged as well.
		{aside: 1, redeliver: true, want: []string{"add ns/a@4"}},
		{redeliver: true},
		{forget: true, redeliver: true, want: []string{"add ns/a@4 initial"}},
	} {
		logger, logged := loggerOf("objects that are set aside")
		a := newAgentWith(t, path, api, func(o *warmwatch.Options) { o.MaxPanics, o.Logger = 1, &logger })
		informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
		if c.redeliver {
			if err := informer.RedeliverSetAside("d"); err != nil {
				t.Error(err)
			}
		}
		if c.forget {
			if err := informer.ForgetDurableEventHandler("d"); err != nil {
				t.Error(err)
			}
		}
		told := make(chan string, 10)
		r := &recorder{during: func(event string) { told <- event }}
		registration, err := informer.AddDurableEventHandler("d", r)
		if err != nil {
			t.Fatal(err)
		}
		a.run(informer)
		<-registration.HasSyncedChecker().Done()
		for range c.want {
			<-told
		}
		a.stop()
		r.expect(t, c.want...)
		if lines := logged(); len(lines) != c.aside || c.aside > 0 && !strings.Contains(lines[0], `"handler"="d" "objects"=1 "first"="ns/a"`) {
			t.Errorf("the start has logged %q", lines)
		}
	}
}

func redeliver(t *testing.T, p *process, keys ...string) {
	t.Helper()
	if err := p.informer.RedeliverSetAside("d", keys...); err != nil {
		t.Fatal(err)
	}
	settle()
}

// told runs a process that is told of the three objects.
func told(t *testing.T) (path string) {
	t.Helper()
	path = testsupport.Path(t)
	delivered(t, path, 0, nil, []string{"add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial"}, 0, nil)
	return path
}

func TestWhatFollowsADeltaThatWasSetAside(t *testing.T) {
	path := told(t)
	changes := []string{"put b", "put a"}
	panicking(t, 2, 2, path, "update ns/b", changes...)
	delivered(t, path, 2, changes, []string{"update ns/a@1→5"}, 1, nil)

	for name, test := range map[string]func(*testing.T, *source, *process, *recorder){
		"its deletion is told, and then it is an object as any other": func(t *testing.T, f *source, p *process, d *recorder) {
			f.change("put b", "remove b")
			settle()
			d.expect(t, "delete ns/b@7")
			expectAside(t, p, 0)
			f.change("put b")
			settle()
			d.expect(t, "add ns/b@8")
		},
		"a change that comes with the demand is an addition": func(t *testing.T, f *source, p *process, d *recorder) {
			release := make(chan struct{})
			d.during = func(event string) {
				if strings.HasPrefix(event, "update ns/a") {
					<-release
				}
			}
			f.change("put a", "put b", "put b")
			settle()
			redeliver(t, p)
			close(release)
			settle()
			d.expect(t, "update ns/a@5→6", "add ns/b@7", "update ns/b@7→8")
			expectAside(t, p, 0)
		},
		"another key is not delivered": func(t *testing.T, _ *source, p *process, d *recorder) {
			redeliver(t, p, "ns/a")
			d.expect(t)
			expectAside(t, p, 1)
			redeliver(t, p, "ns/b")
			d.expect(t, "add ns/b@4")
		},
		"forgetting the name forgets it": func(t *testing.T, f *source, p *process, _ *recorder) {
			p.stop()
			p = launch(t, p.path, f, nil)
			if err := p.informer.ForgetDurableEventHandler("d"); err != nil {
				t.Fatal(err)
			}
			d := addDurable(t, p, "d")
			p.run()
			settle()
			d.expect(t, "add ns/a@5 initial", "add ns/b@4 initial", "add ns/c@3 initial")
		},
		"a resync leaves it out": func(t *testing.T, f *source, p *process, _ *recorder) {
			p.stop()
			p = launch(t, p.path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.ResyncPeriod = time.Hour })
			d := addDurable(t, p, "d")
			p.run()
			settle()
			advance(time.Hour)
			if got := d.take(); slices.ContainsFunc(got, func(e string) bool { return strings.Contains(e, "ns/b") }) || len(got) == 0 {
				t.Errorf("told of %q", got)
			}
		},
		"it is still set aside when the history is lost": func(t *testing.T, f *source, p *process, _ *recorder) {
			p.stop()
			f.change("put b")
			f.remove("c")
			f.restart()
			p = launch(t, p.path, f, nil)
			d := addDurable(t, p, "d")
			p.run()
			settle()
			d.expect(t, "lost ns/c@3")
			expectAside(t, p, 1)
			f.remove("b")
			settle()
			d.expect(t, "delete ns/b@9")
		},
	} {
		t.Run(name, func(t *testing.T) {
			copied := testsupport.Path(t)
			testsupport.CopyFile(t, path, copied)
			delivered(t, copied, 2, changes, nil, 1, test)
		})
	}
}

// TestADeletionThatWasSetAsideIsNotLost: nor is the new object of its name told before it.
func TestADeletionThatWasSetAsideIsNotLost(t *testing.T) {
	path := told(t)
	changes := []string{"remove b"}
	panicking(t, 2, 2, path, "delete ns/b", changes...)
	delivered(t, path, 2, changes, nil, 1, func(t *testing.T, f *source, p *process, d *recorder) {
		f.change("put b", "remove b", "put b", "put a")
		settle()
		d.expect(t, "update ns/a@1→8")
		expectAside(t, p, 1)
	})
	changes = append(changes, "put b", "remove b", "put b", "put a")
	delivered(t, path, 2, changes, nil, 1, func(t *testing.T, _ *source, p *process, d *recorder) {
		redeliver(t, p)
		d.expect(t, "delete ns/b@4", "add ns/b@7")
		expectAside(t, p, 0)
	})
	delivered(t, path, 2, changes, nil, 0, nil)
}

func TestPanicsOnOneObjectThatItGetsPastDoNotCount(t *testing.T) {
	path := testsupport.Path(t)
	panicking(t, 1, 2, path, "add ns/b")
	delivered(t, path, 2, nil, []string{"add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial"}, 0, nil)
	changes := []string{"put b"}
	panicking(t, 1, 2, path, "update ns/b", changes...)
	delivered(t, path, 2, changes, []string{"update ns/b@2→4"}, 0, nil)
}

func TestNoNumberOfPanicsSetsAnObjectAside(t *testing.T) {
	path := testsupport.Path(t)
	panicking(t, 3, -1, path, "add ns/b")
	delivered(t, path, 1, nil, []string{"add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial"}, 0, nil)
}

// TestADurableHandlerIsNotCalledTwiceAtOnceByARedelivery, which comes while a callback runs.
func TestADurableHandlerIsNotCalledTwiceAtOnceByARedelivery(t *testing.T) {
	path := told(t)
	changes := []string{"put b"}
	panicking(t, 1, 1, path, "update ns/b", changes...)
	delivered(t, path, 1, changes, nil, 1, func(t *testing.T, f *source, p *process, d *recorder) {
		var mu sync.Mutex
		d.during = func(event string) {
			if !mu.TryLock() {
				t.Errorf("called with %s while another callback runs", event)
				return
			}
			defer mu.Unlock()
			time.Sleep(time.Second)
		}
		f.change("put a", "put c")
		redeliver(t, p)
		d.expectInAnyOrder(t, "add ns/b@4", "update ns/a@1→5", "update ns/c@3→6")
	})
}
