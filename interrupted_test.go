package warmwatch_test

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// interrupt runs a process that ends between two pages of a list, and returns its file.
func interrupt(f *source, p *process) (crashed string) {
	f.onList = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		switch {
		case o.ResourceVersion != "": // So that the list comes in pages.
			return nil, apierrors.NewResourceExpired("too old resource version")
		case o.Continue == "" || len(f.pages) < 3:
			return nil, nil
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	p.run()
	settle()
	f.with(func() { f.onList = nil })
	crashed = p.crash()
	p.stop()
	clear(f.pages)
	return crashed
}

// TestIndicesAfterAnInterruptedList: the list left entries that other index
// functions may have made.
func TestIndicesAfterAnInterruptedList(t *testing.T) {
	index := func(version, prefix string) setup {
		return func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
			o.IndexVersion = version
			o.Indexers = cache.Indexers{"i": func(obj any) ([]string, error) {
				return []string{prefix + accessor(obj).GetName()}, nil
			}}
		}
	}
	bubble(t, func(t *testing.T) {
		for _, c := range []struct{ version, prefix, other string }{{"1", "old ", "new "}, {"2", "new ", "old "}} {
			f := newSource(t)
			for i := range 2000 {
				f.put(configMap(fmt.Sprintf("o%04d", i)))
			}
			path := interrupt(f, launch(t, testsupport.Path(t), f, index("1", "old ")))
			f.remove("o0000") // It was on the first page.
			p := launch(t, path, f, index(c.version, c.prefix)).run()
			settle()
			expectEqual(t, p.informer, f)
			for name, want := range map[string]int{c.prefix + "o0001": 1, c.prefix + "o1999": 1, c.prefix + "o0000": 0, c.other + "o0001": 0} {
				if keys, err := p.informer.GetIndexer().IndexKeys("i", name); err != nil || len(keys) != want {
					t.Errorf("version %s: %q has %d keys, %v", c.version, name, len(keys), err)
				}
			}
			p.stop()
		}
	})
}

func TestAnInterruptedListIsNotServedAnInterruptedRelistIs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		for i := range 2000 {
			f.put(configMap(fmt.Sprintf("o%04d", i)))
		}
		p := launch(t, testsupport.Path(t), f, nil)
		path := interrupt(f, p)
		if p.informer.HasSynced() || len(p.informer.GetStore().List()) != 0 {
			t.Error("served before the list was complete")
		}

		f.hold = make(chan struct{})
		p = launch(t, path, f, nil)
		r, _ := add(t, p.informer)
		p.run()
		settle()
		if p.informer.HasSynced() || len(p.informer.GetStore().List()) != 0 {
			t.Error("half a list is served")
		}
		r.expect(t)
		f.remove("o0000") // It was on the first page.
		close(f.hold)
		settle()
		f.with(func() { f.hold = nil })
		expectStore(t, p.informer, f)
		if got := r.take(); len(got) != 1999 && len(got) != 2000 {
			t.Errorf("%d notifications, the first is %s", len(got), got[0])
		}
		p.stop()

		// And one that ends between two pages of a relist.
		f.put(configMap("o0001"), configMap("o1999"))
		path = interrupt(f, launch(t, p.path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.NeverResume = true }))
		f.hold = make(chan struct{})
		p = launch(t, path, f, nil).run()
		if st := p.informer.Status(); !p.informer.HasSynced() || st.Objects != 1999 || st.StartedFrom != "disk" {
			t.Errorf("after an interrupted relist: %+v", st)
		}
		close(f.hold)
		settle()
		expectStore(t, p.informer, f)
		if st := p.informer.Status(); st.Relists != 0 || st.Resumes != 1 {
			t.Errorf("an interrupted relist has changed something: %+v", st)
		}
	})
}

// TestAnInterruptedInitialListThatBeginsAgainTellsOfWhatIsReplacedMeanwhile: a durable handler
// was told of an object before the crash, and the deletion of that object comes behind the
// undelivered deltas and before the list reads its successor.
func TestAnInterruptedInitialListThatBeginsAgainTellsOfWhatIsReplacedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
		p := launch(t, testsupport.Path(t), f, nil)
		first, goOn := &recorder{}, make(chan struct{})
		waits := cache.ResourceEventHandlerDetailedFuncs{AddFunc: func(obj any, initial bool) {
			if first.OnAdd(obj, initial); keyOf(obj) == "ns/c" {
				<-goOn
			}
		}}
		if _, err := p.informer.AddDurableEventHandler("d", waits, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		f.remove("b")
		settle()
		first.expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
		crashed := p.crash()
		close(goOn)
		p.stop()

		q := launch(t, crashed, f, nil)
		second := &recorder{}
		goOn = make(chan struct{})
		handler := cache.ResourceEventHandlerDetailedFuncs{AddFunc: second.OnAdd, UpdateFunc: second.OnUpdate, DeleteFunc: func(obj any) {
			second.OnDelete(obj)
			<-goOn
		}}
		if _, err := q.informer.AddDurableEventHandler("d", handler, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		q.run()
		settle()
		f.remove("a")
		f.put(configMap("a"))
		settle()
		close(goOn)
		settle()
		second.expect(t, "delete ns/b@4", "delete ns/a@5", "add ns/a@6 initial", "add ns/c@3 initial")
	})
}
