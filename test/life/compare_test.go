package life_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// TestCompareFindsExactlyWhatDiffers, and changes nothing.
func TestCompareFindsExactlyWhatDiffers(t *testing.T) {
	name := func(names ...string) (all []cache.ObjectName) {
		for _, n := range names {
			all = append(all, cache.NewObjectName("ns", n))
		}
		return all
	}
	unlabelled := func(obj any) (any, error) {
		obj.(*corev1.ConfigMap).Labels = nil
		if obj.(*corev1.ConfigMap).Data["v"] == "bad" {
			return nil, process.ErrTransform
		}
		return obj, nil
	}
	for what, test := range map[string]struct {
		transform cache.TransformFunc
		lose      func(f *source.Source)
		want      warmwatch.Difference
	}{
		"nothing":      {nil, func(*source.Source) {}, warmwatch.Difference{}},
		"one of each":  {nil, func(f *source.Source) { f.Change("put z", "put a", "remove b") }, warmwatch.Difference{Missing: name("z"), Surplus: name("b"), Different: name("a")}},
		"another uid":  {nil, func(f *source.Source) { f.Change("remove a", "put a") }, warmwatch.Difference{Different: name("a")}},
		"many":         {nil, func(f *source.Source) { f.Change("put y", "put z", "remove a", "remove b") }, warmwatch.Difference{Missing: name("y", "z"), Surplus: name("a", "b")}},
		"content only": {nil, func(f *source.Source) { convert(f, "a", "other") }, warmwatch.Difference{Different: name("a")}},
		"what the transform removes": {unlabelled, func(f *source.Source) {
			f.With(func() { source.Meta(f.Objects["ns/a"]).SetLabels(map[string]string{"x": "y"}) })
		}, warmwatch.Difference{}},
		"what the transform refuses": {unlabelled, func(f *source.Source) {
			f.Put(source.ConfigMap("a", "bad"), source.ConfigMap("z", "bad"))
		}, warmwatch.Difference{Missing: name("z"), Different: name("a")}},
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a", "1"), source.ConfigMap("b", "1"))
				for i := range 1100 { // More than two pages.
					f.Put(source.ConfigMap(fmt.Sprint("other-", i)))
				}
				p := process.LaunchTransforming(t, testsupport.Path(t), f, test.transform)
				r, _ := recorder.Add(t, p.Informer)
				bubble.Settle()
				r.Take()
				before, stored := p.Informer.Status(), source.Versions(p.Informer.GetStore().List())
				f.Lose(func() { test.lose(f) })
				got, err := p.Informer.Compare(t.Context())
				if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
				after := p.Informer.Status()
				before.LastContact, after.LastContact = time.Time{}, time.Time{}
				if diff := cmp.Diff(before, after); diff != "" || len(r.Take()) > 0 {
					t.Errorf("the informer has changed:\n%s", diff)
				}
				p.ExpectVersions(stored...)
			})
		})
	}
}

// TestCompareTakesNoChangeForADifference: objects change right after each list, or the watch is behind it.
func TestCompareTakesNoChangeForADifference(t *testing.T) {
	for what, lag := range map[string]time.Duration{"the list is behind": 0, "the watch is behind": 300 * time.Millisecond} {
		t.Run(what, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("hot"), source.ConfigMap("goes-1"), source.ConfigMap("goes-2"), source.ConfigMap("lost"))
				p := process.Launch(t, testsupport.Path(t), f, nil)
				p.Run()
				bubble.Settle()
				f.Lose(func() { f.Remove("lost") })
				lists := 0
				change := func(n int) {
					f.Change("put hot", fmt.Sprint("put new-", n), fmt.Sprint("remove goes-", n))
				}
				f.With(func() {
					f.OnList = func(_ context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
						lists++
						if lag > 0 {
							changeLate(f, lag, lists, change)
						}
						f.With(func() { list, err = f.ListLocked(o) })
						if lag == 0 {
							change(lists)
							time.Sleep(100 * time.Millisecond) // Until the store has it.
						}
						return list, err
					}
				})
				got, err := p.Informer.Compare(t.Context())
				want := warmwatch.Difference{Surplus: []cache.ObjectName{cache.NewObjectName("ns", "lost")}}
				if diff := cmp.Diff(want, got); err != nil || diff != "" || lists != 2 {
					t.Errorf("%d lists, %v (-want +got):\n%s", lists, err, diff)
				}
			})
		})
	}
}

// changeLate makes changes of which the watch tells later.
func changeLate(f *source.Source, lag time.Duration, n int, change func(int)) {
	gone := f.Objects[fmt.Sprint("ns/goes-", n)].DeepCopyObject()
	f.Lose(func() { change(n) })
	hot, added := f.Objects["ns/hot"].DeepCopyObject(), f.Objects[fmt.Sprint("ns/new-", n)].DeepCopyObject()
	source.Meta(gone).SetResourceVersion(fmt.Sprint(f.RV))
	time.AfterFunc(lag, func() {
		f.Emit(watch.Modified, hot)
		f.Emit(watch.Added, added)
		f.Emit(watch.Deleted, gone)
	})
}

// TestCompareNeedsAServerAndACache: it compares what is served with what is there.
func TestCompareNeedsAServerAndACache(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		compare := func(when string, want bool) {
			t.Helper()
			if _, err := p.Informer.Compare(t.Context()); (err == nil) != want {
				t.Errorf("%s: %v", when, err)
			}
		}
		compare("before it runs", false)
		p.Run()
		bubble.Settle()
		compare("while it runs", true)
		f.SetDown(source.ErrUnreachable)
		compare("without a server", false)
		f.SetDown(nil)
		p.End()
		compare("after its end", false)
	})
}

// TestInformerByName finds those that run, by their names in Status.
func TestInformerByName(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		p := process.Launch(t, testsupport.Path(t), source.New(t), nil)
		const name = "configmaps/v1 (typed)"
		if p.Cache.Informer(name) != nil {
			t.Error("found before it runs")
		}
		p.Run()
		if p.Cache.Informer(name) != p.Informer || p.Cache.Informer("x") != nil {
			t.Error("not found, or another one")
		}
		p.End()
		if p.Cache.Informer(name) != nil {
			t.Error("found after its end")
		}
	})
}
