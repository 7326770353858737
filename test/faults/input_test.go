package faults_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestOpenRefusesAPathThatCannotBeMeantAndOptionsThatMakeNoSense(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := mkfifo(fifo); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(dir, "cache.db")
	for name, c := range map[string]struct {
		path string
		o    warmwatch.Options
		want string
	}{
		"no path":                  {path: "", want: "path is empty"},
		"a directory":              {path: dir, want: dir + " is not a regular file"},
		"a named pipe":             {path: fifo, want: fifo + " is not a regular file"},
		"CommitInterval negative":  {path: good, o: warmwatch.Options{CommitInterval: -1}, want: "CommitInterval is negative"},
		"DurableDelay negative":    {path: good, o: warmwatch.Options{DurableDelay: -time.Second}, want: "DurableDelay is negative"},
		"MaxPendingBytes negative": {path: good, o: warmwatch.Options{MaxPendingBytes: -1}, want: "MaxPendingBytes is negative"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := warmwatch.Open(t.Context(), c.path, c.o)
			if err == nil || !strings.HasPrefix(err.Error(), "warmwatch: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q, expected %q in it", err, c.want)
			}
		})
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("a refused Open has left something behind: %v", entries)
	}
}

func TestNewSharedIndexInformerRefusesWhatIsMissing(t *testing.T) {
	c, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f := source.New(t)
	for name, a := range map[string]struct {
		lw      cache.ListerWatcher
		example apiruntime.Object
		o       warmwatch.InformerOptions
		want    string
	}{
		"a ListerWatcher":         {nil, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps}, "ListerWatcher is required"},
		"a ListerWatcher, typed":  {(*cache.ListWatch)(nil), &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps}, "ListerWatcher is required"},
		"an example object":       {f, nil, warmwatch.InformerOptions{Resource: process.ConfigMaps}, "an example object is required"},
		"an example that is not":  {f, (*corev1.ConfigMap)(nil), warmwatch.InformerOptions{Resource: process.ConfigMaps}, "an example object is required"},
		"the Resource":            {f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Namespace: "ns"}, "Resource is required, because Namespace or a selector is set"},
		"the Resource's version":  {f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: schema.GroupVersionResource{Resource: "pods"}}, "InformerOptions.Resource is required whole"},
		"the Resource's resource": {f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: schema.GroupVersionResource{Version: "v1"}}, "InformerOptions.Resource is required whole"},
		"sense":                   {f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps, ResyncPeriod: -1}, "ResyncPeriod is negative"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.NewSharedIndexInformer(a.lw, a.example, a.o); err == nil || !strings.Contains(err.Error(), a.want) {
				t.Errorf("error %q, expected %q in it", err, a.want)
			}
		})
	}
	if n := len(c.Status().Informers); n != 0 {
		t.Errorf("%d informers were made", n)
	}
}

func TestAnIdentityHasOneInformerAtATime(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		another := func(o warmwatch.InformerOptions) error {
			o.Resource = process.ConfigMaps
			_, err := p.Cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, o)
			return err
		}
		for _, run := range []func(){func() { p.Run() }, func() {}} {
			if err := another(warmwatch.InformerOptions{}); !errors.Is(err, warmwatch.ErrInUse) || !strings.Contains(err.Error(), "configmaps/v1 (typed)") {
				t.Errorf("a second informer: %v", err)
			}
			run()
		}
		for _, o := range []warmwatch.InformerOptions{
			{Name: "2"}, {Namespace: "ns"}, {LabelSelector: "a=b"}, {FieldSelector: "a=b"}, {LabelSelector: "a=", FieldSelector: "b="},
		} {
			if err := another(o); err != nil {
				t.Errorf("%+v: %v", o, err)
			}
		}
		p.End()
		if err := another(warmwatch.InformerOptions{}); err != nil {
			t.Errorf("after the first has stopped: %v", err)
		}
	})
}

func TestHandlersThatMakeNoSenseAreRefused(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		p := process.Launch(t, testsupport.Path(t), source.New(t, source.ConfigMap("a")), nil)
		for _, run := range []func(){func() { p.Run() }, func() {}} { // Before and after the start.
			for name, err := range map[string]error{
				"nil":                     second(p.Informer.AddEventHandler(nil)),
				"a nil pointer":           second(p.Informer.AddEventHandler((*recorder.Recorder)(nil))),
				"nil with a period":       second(p.Informer.AddEventHandlerWithResyncPeriod(nil, time.Second)),
				"nil, durable":            second(p.Informer.AddDurableEventHandler("n", nil, warmwatch.DurableOptions{})),
				"a nil pointer, durable":  second(p.Informer.AddDurableEventHandler("n", (*recorder.Recorder)(nil), warmwatch.DurableOptions{})),
				"durable without a name":  second(p.Informer.AddDurableEventHandler("", &recorder.Recorder{}, warmwatch.DurableOptions{})),
				"forget what has no name": p.Informer.ForgetDurable(""),
			} {
				if err == nil || !strings.Contains(err.Error(), "is required") {
					t.Errorf("%s: error %v", name, err)
				}
			}
			run()
		}
		if _, err := p.Informer.AddDurableEventHandler(strings.Repeat("n", 33<<10), &recorder.Recorder{}, warmwatch.DurableOptions{}); err == nil || !strings.Contains(err.Error(), "too long") {
			t.Errorf("a name of 33 KB: error %v", err)
		}
		// A refused name is free.
		process.AddDurable(t, p, "n")
		if _, err := p.Informer.AddDurableEventHandler("n", &recorder.Recorder{}, warmwatch.DurableOptions{}); !errors.Is(err, warmwatch.ErrInUse) || !strings.Contains(err.Error(), `"n"`) {
			t.Errorf("a name that is used: %v", err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestAListerWatcherThatAnswersNonsenseIsAskedAgain(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		f.OnList = func(context.Context, metav1.ListOptions) (apiruntime.Object, error) {
			f.With(func() { f.OnList = nil })
			return &corev1.ConfigMap{}, nil
		}
		p := process.Launch(t, testsupport.Path(t), f, nil)
		r, _ := recorder.Add(t, p.Informer)
		p.Run()
		if p.Informer.HasSynced() {
			t.Error("synced with what is no list")
		}
		bubble.Settle()
		r.Expect(t, "add ns/a@1 initial")
	})
}
