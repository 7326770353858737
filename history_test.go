package warmwatch_test

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// at returns an object of this version, as a server with another history has it.
func at(rv, uid, name, content string) *corev1.ConfigMap {
	cm := configMap(name, content)
	cm.ResourceVersion, cm.UID = rv, types.UID(uid)
	return cm
}

// newHistory is a source whose objects a, b and z have the versions 100, 101 and 102.
func newHistory(t *testing.T) *source {
	f := newSource(t)
	f.rv = 99
	f.put(configMap("a", "x"), configMap("b", "x"), configMap("z", "x"))
	return f
}

// The objects of newHistory.
func a() *corev1.ConfigMap { return at("100", "uid-1", "a", "x") }
func b() *corev1.ConfigMap { return at("101", "uid-2", "b", "x") }
func z() *corev1.ConfigMap { return at("102", "uid-3", "z", "x") }

// restore makes f a server that was restored from a backup of long ago, and is at
// this version since.
func (f *source) restore(rv int64, objects ...runtime.Object) { f.become(rv, 1, objects) }

// ignoreVersions overwrites the version that a list is asked for, as the functions
// of some ListerWatchers do.
func (f *source) ignoreVersions() {
	f.with(func() {
		f.onList = func(_ context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
			o.ResourceVersion, o.ResourceVersionMatch = "0", ""
			f.with(func() { list, err = f.listLocked(o) })
			return list, err
		}
	})
}

// histories are those of servers other than the one that the objects of newHistory came from.
var histories = []struct {
	name    string
	restore func(*source)
	cause   warmwatch.Cause // Empty: it is not noticed by the answers to questions.
}{
	{"it is the same", func(*source) {}, ""},
	{"it has gone on", func(f *source) { f.put(configMap("a", "y"), configMap("c", "x")) }, ""},
	{"the objects have been deleted", func(f *source) { f.remove("z", "a", "b") }, ""},
	{"the object was made anew", func(f *source) { f.remove("z"); f.put(configMap("z", "y")) }, ""},
	{
		"the answer is below the checkpoint", func(f *source) { f.ignoreVersions(); f.restore(50, at("50", "uid-1", "a", "x")) },
		warmwatch.CauseServerBehind,
	},
	{
		"the first object is another one", func(f *source) { f.restore(200, at("100", "other", "a", "x"), b(), z()) },
		warmwatch.CauseContradiction,
	},
	{
		"the first object is of an older version", func(f *source) { f.restore(200, at("99", "uid-1", "a", "x"), b(), z()) },
		warmwatch.CauseContradiction,
	},
	{
		"the store does not have the first object", func(f *source) { f.restore(200, at("90", "uid-0", "0", "x"), a(), b(), z()) },
		warmwatch.CauseContradiction,
	},
}

func TestAnAnswerOfAnotherHistoryMeansARelistByContent(t *testing.T) {
	for _, c := range histories {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newHistory(t)
				path := filled(t, f, nil)
				c.restore(f)
				p := launch(t, path, f, nil).run()
				settle()
				p.expectHistory(f, c.cause)
				f.put(configMap("after", "x"))
				settle()
				expectEqual(t, p.informer, f)
			})
		})
	}
}

// expectHistory wants a relist for this cause, or none.
func (p *process) expectHistory(f *source, cause warmwatch.Cause) {
	p.t.Helper()
	expectEqual(p.t, p.informer, f)
	st := p.informer.Status()
	if relists := min(1, len(cause)); st.Relists != relists || st.Cause != cmp.Or(cause, warmwatch.CauseResumed) {
		p.t.Errorf("status %+v, expected %d relists because of %q", st, relists, cause)
	}
}

// TestAWatchThatHasEndedIsNotOpenedInAnotherHistory (A3): the question has the same answers as at a start.
func TestAWatchThatHasEndedIsNotOpenedInAnotherHistory(t *testing.T) {
	for _, c := range histories {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newHistory(t)
				p := launch(t, filled(t, f, nil), f, nil).run()
				settle()
				c.restore(f)
				f.closeWatches()
				settle()
				p.expectHistory(f, c.cause)
			})
		})
	}
}

// TestTheCauseIsTheLastOne of several.
func TestTheCauseIsTheLastOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, nil).run()
		for _, step := range []struct {
			act  func()
			want warmwatch.Cause
		}{
			{func() {}, warmwatch.CauseFirstStart},
			{func() { f.setDown(errUnreachable); settle(); f.setDown(nil) }, warmwatch.CauseResumed},
			{func() { relisted(f, func() { f.put(configMap("b")) }) }, warmwatch.CauseExpired},
			{func() {
				if err := p.informer.Relist(t.Context()); err != nil {
					t.Error(err)
				}
			}, warmwatch.CauseFullRelist},
		} {
			step.act()
			settle()
			if got := p.informer.Status().Cause; got != step.want {
				t.Errorf("%q, expected %q", got, step.want)
			}
		}
	})
}

// refuse is a transform.
func refuse(obj any) (any, error) {
	if strings.Contains(accessor(obj).GetName(), "refused") {
		return nil, errTransform
	}
	return obj, nil
}

// TestAnObjectThatTheTransformRefusesProvesNothing: the server's answer has the object,
// the store does not.
func TestAnObjectThatTheTransformRefusesProvesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newHistory(t)
		p := transforming(t, testsupport.Path(t), f, refuse)
		f.put(configMap("0refused", "x"), configMap("b", "y"))
		settle()
		f.takeRequests()
		f.closeWatches()
		settle()
		p.expectRequests(f, "LIST limit=1", "WATCH rv=104")
	})
}

func TestAHandlerThatChangesObjectsIsNotAnotherHistory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a", "x"), configMap("b", "x"))
		p := launch(t, testsupport.Path(t), f, nil)
		label := func(obj any) { obj.(*corev1.ConfigMap).Labels = map[string]string{"seen": "1"} }
		if _, err := p.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: label, UpdateFunc: func(_, obj any) { label(obj) }}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		for range 5 {
			f.put(configMap("b", "y"))
			f.closeWatches()
			settle()
		}
		if st := p.informer.Status(); st.Relists != 1 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestEtcdPutBackUnderAnInformerThatIsNeverResumed: once its watch has ended, it is found out as it is
// by any other informer.
func TestEtcdPutBackUnderAnInformerThatIsNeverResumed(t *testing.T) { // A3
	bubble(t, func(t *testing.T) {
		f := newHistory(t)
		p := launch(t, testsupport.Path(t), f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.NeverResume = true })
		r, _ := add(t, p.informer)
		p.run()
		f.put(configMap("a", "y"))
		f.remove("b")
		settle()
		r.take()
		f.restore(102, a(), b(), z())
		settle()
		expectStore(t, p.informer, f)
		r.expect(t, "update ns/a@103→100", "add ns/b@101")
	})
}

// TestAWatchCacheThatLagsIsNoOtherHistory: it refuses a list not older than the store, but the newest version is no
// older. A server that was put back has an older one.
func TestAWatchCacheThatLagsIsNoOtherHistory(t *testing.T) {
	lags := func(newest error) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
		return func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			switch {
			case o.Limit == 1:
				return nil, nil
			case o.ResourceVersionMatch == metav1.ResourceVersionMatchNotOlderThan:
				rv, _ := strconv.ParseInt(o.ResourceVersion, 10, 64)
				return nil, tooLarge(rv, rv-1)
			}
			return nil, newest
		}
	}
	t.Run("handlers are not told that what the transform refuses is gone", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			f := newSource(t, configMap("a"), configMap("b"))
			p := launch(t, testsupport.Path(t), f, nil)
			refuses := false
			err := p.informer.SetTransform(func(obj any) (any, error) {
				if refuses && accessor(obj).GetName() == "a" {
					return nil, errors.New("the transform refuses it")
				}
				return obj, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			durable := addDurable(t, p, "d")
			plain, _ := add(t, p.informer)
			p.run()
			settle()
			f.put(configMap("b", "x")) // Else the newest is listed anyway.
			settle()
			durable.take()
			plain.take()
			refuses = true
			f.with(func() { f.onList = lags(nil) })
			f.restart()
			settle()
			if n := p.informer.Status().Relists; n != 2 {
				t.Errorf("%d relists, expected 2", n)
			}
			durable.expect(t)
			plain.expect(t)
		})
	})
	t.Run("the next process serves what is stored", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			f := newSource(t, configMap("a"), configMap("b"))
			p := launch(t, testsupport.Path(t), f, nil).run()
			settle()
			f.put(configMap("b", "x"))
			settle()
			f.with(func() { f.onList = lags(errUnreachable) })
			f.restart()
			settle()
			p.stop()
			f.setDown(errUnreachable)
			p = launch(t, p.path, f, nil).run()
			settle()
			if n := len(p.informer.GetStore().List()); n != 2 || !p.informer.HasSynced() {
				t.Errorf("%d objects are served, HasSynced %t: %+v", n, p.informer.HasSynced(), p.informer.Status())
			}
		})
	})
}
