package contract_test

import (
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/go-logr/logr/funcr"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func inNamespace(namespace, name, label string) *corev1.ConfigMap {
	cm := source.ConfigMap(name)
	cm.Namespace, cm.Labels = namespace, map[string]string{"app": label}
	return cm
}

// outsideRefused counts the log lines about objects from outside.
func outsideRefused(n *atomic.Int64) process.Setup {
	logger := funcr.New(func(_, args string) {
		if strings.Contains(args, "Refusing what the ListerWatcher returns") {
			n.Add(1)
		}
	}, funcr.Options{})
	return func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
		o.Logger = &logger
		io.Namespace, io.LabelSelector = "ns", "app in (a)"
	}
}

// TestObjectsFromOutsideTheIdentityAreNotServed where the request for them cannot be seen: the
// ListerWatcher lists more than InformerOptions say.
func TestObjectsFromOutsideTheIdentityAreNotServed(t *testing.T) {
	for name, c := range map[string]struct {
		outside *corev1.ConfigMap
		want    string
	}{
		"of another namespace":   {inNamespace("other", "x", "a"), `other/x, expected objects of namespace "ns" only`},
		"with other labels":      {inNamespace("ns", "x", "b"), `ns/x with labels map[app:b], expected objects that "app=a" selects only`},
		"of no namespace at all": {inNamespace("", "x", "a"), `/x, expected objects of namespace "ns" only`},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, inNamespace("ns", "a", "a"), c.outside)
				var logged atomic.Int64
				p := process.Launch(t, testsupport.Path(t), f, outsideRefused(&logged))
				r, _ := recorder.Add(t, p.Informer)
				p.Run()
				bubble.Settle()
				expectOutside(t, p, c.want)
				if r.Expect(t); p.Informer.HasSynced() || len(p.Informer.GetStore().List()) != 0 {
					t.Errorf("synced %v, %d objects", p.Informer.HasSynced(), len(p.Informer.GetStore().List()))
				}
				if n := logged.Load(); n != 1 {
					t.Errorf("logged %d times", n)
				}
				f.With(func() { delete(f.Objects, source.Key(c.outside)) })
				bubble.Settle()
				r.Expect(t, "add ns/a@1 initial")
				if err := p.Informer.Status().Err; err != nil {
					t.Errorf("status says %v", err)
				}
			})
		})
		t.Run(name+"/in a watch", func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f, path := source.New(t, inNamespace("ns", "a", "a")), testsupport.Path(t)
				var logged atomic.Int64
				for _, cold := range []bool{true, false} {
					p := process.Launch(t, path, f, outsideRefused(&logged))
					r, _ := recorder.Add(t, p.Informer)
					p.Run()
					bubble.Settle()
					r.Expect(t, "add ns/a@1 initial")
					if cold {
						f.Put(c.outside)
					}
					bubble.Settle()
					expectOutside(t, p, c.want)
					r.Expect(t)
					if got := p.Informer.GetStore().ListKeys(); len(got) != 1 {
						t.Errorf("serves %q", got)
					}
					p.Stop()
				}
				if n := logged.Load(); n != 2 {
					t.Errorf("logged %d times", n)
				}
			})
		})
	}
}

func expectOutside(t *testing.T, p *process.Process, want string) {
	t.Helper()
	if err := p.Informer.Status().Err; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("status says %v, expected %s", err, want)
	}
}

// TestAnObjectThatLeavesTheIdentityIsDeleted: the server says so by a deletion, which has the
// object as it is now.
func TestAnObjectThatLeavesTheIdentityIsDeleted(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, inNamespace("ns", "a", "a"))
		var logged atomic.Int64
		p := process.Launch(t, testsupport.Path(t), f, outsideRefused(&logged))
		r, _ := recorder.Add(t, p.Informer)
		p.Run()
		bubble.Settle()
		f.With(func() { f.Objects["ns/a"] = inNamespace("ns", "a", "b") })
		f.Remove("a")
		bubble.Settle()
		r.Expect(t, "add ns/a@1 initial", "delete ns/a@2")
		if err := p.Informer.Status().Err; err != nil || logged.Load() != 0 {
			t.Errorf("status says %v, logged %d times", err, logged.Load())
		}
	})
}
