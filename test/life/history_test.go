package life_test

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
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// newHistory is a source whose objects a, b and z have the versions 100, 101 and 102.
func newHistory(t *testing.T) *source.Source {
	f := source.New(t)
	f.RV = 99
	f.Put(source.ConfigMap("a", "x"), source.ConfigMap("b", "x"), source.ConfigMap("z", "x"))
	return f
}

// The objects of newHistory.
func a() *corev1.ConfigMap { return source.At("100", "uid-1", "a", "x") }

func b() *corev1.ConfigMap { return source.At("101", "uid-2", "b", "x") }

func z() *corev1.ConfigMap { return source.At("102", "uid-3", "z", "x") }

// restore makes f a server that was restored from a backup of long ago, and is at
// this version since.
func restore(f *source.Source, rv int64, objects ...runtime.Object) { f.Become(rv, 1, objects) }

// ignoreVersions overwrites the version that a list is asked for, as the functions
// of some ListerWatchers do.
func ignoreVersions(f *source.Source) {
	f.With(func() {
		f.OnList = func(_ context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
			o.ResourceVersion, o.ResourceVersionMatch = "0", ""
			f.With(func() { list, err = f.ListLocked(o) })
			return list, err
		}
	})
}

// histories are those of servers other than the one that the objects of newHistory came from.
var histories = []struct {
	name    string
	restore func(*source.Source)
	cause   warmwatch.Cause // Empty: it is not noticed by the answers to questions.
}{
	{"it is the same", func(*source.Source) {}, ""},
	{"it has gone on", func(f *source.Source) { f.Put(source.ConfigMap("a", "y"), source.ConfigMap("c", "x")) }, ""},
	{"the objects have been deleted", func(f *source.Source) { f.Remove("z", "a", "b") }, ""},
	{"the object was made anew", func(f *source.Source) { f.Remove("z"); f.Put(source.ConfigMap("z", "y")) }, ""},
	{
		"the answer is below the checkpoint", func(f *source.Source) { ignoreVersions(f); restore(f, 50, source.At("50", "uid-1", "a", "x")) },
		warmwatch.CauseServerBehind,
	},
	{
		"the first object is another one", func(f *source.Source) { restore(f, 200, source.At("100", "other", "a", "x"), b(), z()) },
		warmwatch.CauseContradiction,
	},
	{
		"the first object is of an older version", func(f *source.Source) { restore(f, 200, source.At("99", "uid-1", "a", "x"), b(), z()) },
		warmwatch.CauseContradiction,
	},
	{
		"the store does not have the first object", func(f *source.Source) { restore(f, 200, source.At("90", "uid-0", "0", "x"), a(), b(), z()) },
		warmwatch.CauseContradiction,
	},
}

func TestAnAnswerOfAnotherHistoryMeansARelistByContent(t *testing.T) {
	for _, c := range histories {
		t.Run(c.name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := newHistory(t)
				path := process.Filled(t, f, nil)
				c.restore(f)
				p := process.Launch(t, path, f, nil).Run()
				bubble.Settle()
				expectHistory(p, f, c.cause)
				f.Put(source.ConfigMap("after", "x"))
				bubble.Settle()
				process.ExpectEqual(t, p.Informer, f)
			})
		})
	}
}

// expectHistory wants a relist for this cause, or none.
func expectHistory(p *process.Process, f *source.Source, cause warmwatch.Cause) {
	p.T.Helper()
	process.ExpectEqual(p.T, p.Informer, f)
	st := p.Informer.Status()
	if relists := min(1, len(cause)); st.Relists != relists || st.Cause != cmp.Or(cause, warmwatch.CauseResumed) {
		p.T.Errorf("status %+v, expected %d relists because of %q", st, relists, cause)
	}
}

// TestAWatchThatHasEndedIsNotOpenedInAnotherHistory (A3): the question has the same answers as at a start.
func TestAWatchThatHasEndedIsNotOpenedInAnotherHistory(t *testing.T) {
	for _, c := range histories {
		t.Run(c.name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := newHistory(t)
				p := process.Launch(t, process.Filled(t, f, nil), f, nil).Run()
				bubble.Settle()
				c.restore(f)
				f.CloseWatches()
				bubble.Settle()
				expectHistory(p, f, c.cause)
			})
		})
	}
}

// TestTheCauseIsTheLastOne of several.
func TestTheCauseIsTheLastOne(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil).Run()
		for _, step := range []struct {
			act  func()
			want warmwatch.Cause
		}{
			{func() {}, warmwatch.CauseFirstStart},
			{func() { f.SetDown(source.ErrUnreachable); bubble.Settle(); f.SetDown(nil) }, warmwatch.CauseResumed},
			{func() { source.Relisted(f, func() { f.Put(source.ConfigMap("b")) }) }, warmwatch.CauseExpired},
			{func() {
				if err := p.Informer.Relist(t.Context()); err != nil {
					t.Error(err)
				}
			}, warmwatch.CauseFullRelist},
		} {
			step.act()
			bubble.Settle()
			if got := p.Informer.Status().Cause; got != step.want {
				t.Errorf("%q, expected %q", got, step.want)
			}
		}
	})
}

// refuse is a transform.
func refuse(obj any) (any, error) {
	if strings.Contains(source.Meta(obj).GetName(), "refused") {
		return nil, process.ErrTransform
	}
	return obj, nil
}

// TestAnObjectThatTheTransformRefusesProvesNothing: the server's answer has the object,
// the store does not.
func TestAnObjectThatTheTransformRefusesProvesNothing(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := newHistory(t)
		p := process.LaunchTransforming(t, testsupport.Path(t), f, refuse)
		f.Put(source.ConfigMap("0refused", "x"), source.ConfigMap("b", "y"))
		bubble.Settle()
		f.TakeRequests()
		f.CloseWatches()
		bubble.Settle()
		p.ExpectRequests(f, "LIST limit=1", "WATCH rv=104")
	})
}

func TestAHandlerThatChangesObjectsIsNotAnotherHistory(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "x"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		label := func(obj any) { obj.(*corev1.ConfigMap).Labels = map[string]string{"seen": "1"} }
		if _, err := p.Informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: label, UpdateFunc: func(_, obj any) { label(obj) }}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		for range 5 {
			f.Put(source.ConfigMap("b", "y"))
			f.CloseWatches()
			bubble.Settle()
		}
		if st := p.Informer.Status(); st.Relists != 1 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestEtcdPutBackUnderAnInformerThatIsNeverResumed: once its watch has ended, it is found out as it is
// by any other informer.
func TestEtcdPutBackUnderAnInformerThatIsNeverResumed(t *testing.T) { // A3
	bubble.Run(t, func(t *testing.T) {
		f := newHistory(t)
		p := process.Launch(t, testsupport.Path(t), f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.NeverResume = true })
		r, _ := recorder.Add(t, p.Informer)
		p.Run()
		f.Put(source.ConfigMap("a", "y"))
		f.Remove("b")
		bubble.Settle()
		r.Take()
		restore(f, 102, a(), b(), z())
		bubble.Settle()
		process.ExpectStore(t, p.Informer, f)
		r.Expect(t, "update ns/a@103→100", "add ns/b@101")
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
				return nil, source.TooLarge(rv, rv-1)
			}
			return nil, newest
		}
	}
	t.Run("handlers are not notified that what the transform refuses is gone", func(t *testing.T) {
		bubble.Run(t, func(t *testing.T) {
			f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
			p := process.Launch(t, testsupport.Path(t), f, nil)
			refuses := false
			err := p.Informer.SetTransform(func(obj any) (any, error) {
				if refuses && source.Meta(obj).GetName() == "a" {
					return nil, errors.New("the transform refuses it")
				}
				return obj, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			durable := process.AddDurable(t, p, "d")
			plain, _ := recorder.Add(t, p.Informer)
			p.Run()
			bubble.Settle()
			f.Put(source.ConfigMap("b", "x")) // Else the newest is listed anyway.
			bubble.Settle()
			durable.Take()
			plain.Take()
			refuses = true
			f.With(func() { f.OnList = lags(nil) })
			f.Restart()
			bubble.Settle()
			if n := p.Informer.Status().Relists; n != 2 {
				t.Errorf("%d relists, expected 2", n)
			}
			durable.Expect(t)
			plain.Expect(t)
		})
	})
	t.Run("the next process serves what is stored", func(t *testing.T) {
		bubble.Run(t, func(t *testing.T) {
			f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
			p := process.Launch(t, testsupport.Path(t), f, nil).Run()
			bubble.Settle()
			f.Put(source.ConfigMap("b", "x"))
			bubble.Settle()
			f.With(func() { f.OnList = lags(source.ErrUnreachable) })
			f.Restart()
			bubble.Settle()
			p.Stop()
			f.SetDown(source.ErrUnreachable)
			p = process.Launch(t, p.Path, f, nil).Run()
			bubble.Settle()
			if n := len(p.Informer.GetStore().List()); n != 2 || !p.Informer.HasSynced() {
				t.Errorf("%d objects are served, HasSynced %t: %+v", n, p.Informer.HasSynced(), p.Informer.Status())
			}
		})
	})
}
