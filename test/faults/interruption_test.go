package faults_test

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
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// interrupt runs a process that ends between two pages of a list, and returns its file.
func interrupt(f *source.Source, p *process.Process) (crashed string) {
	f.OnList = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		switch {
		case o.ResourceVersion != "": // So that the list comes in pages.
			return nil, apierrors.NewResourceExpired("too old resource version")
		case o.Continue == "" || len(f.Pages) < 3:
			return nil, nil
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	p.Run()
	bubble.Settle()
	f.With(func() { f.OnList = nil })
	crashed = p.Crash()
	p.Stop()
	clear(f.Pages)
	return crashed
}

// TestIndicesAfterAnInterruptedList: the list left entries that other index
// functions may have made.
func TestIndicesAfterAnInterruptedList(t *testing.T) {
	index := func(version, prefix string) process.Setup {
		return func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
			o.IndexVersion = version
			o.Indexers = cache.Indexers{"i": func(obj any) ([]string, error) {
				return []string{prefix + source.Meta(obj).GetName()}, nil
			}}
		}
	}
	bubble.Run(t, func(t *testing.T) {
		for _, c := range []struct{ version, prefix, other string }{{"1", "old ", "new "}, {"2", "new ", "old "}} {
			f := source.New(t)
			for i := range 2000 {
				f.Put(source.ConfigMap(fmt.Sprintf("o%04d", i)))
			}
			path := interrupt(f, process.Launch(t, testsupport.Path(t), f, index("1", "old ")))
			f.Remove("o0000") // It was on the first page.
			p := process.Launch(t, path, f, index(c.version, c.prefix)).Run()
			bubble.Settle()
			process.ExpectEqual(t, p.Informer, f)
			for name, want := range map[string]int{c.prefix + "o0001": 1, c.prefix + "o1999": 1, c.prefix + "o0000": 0, c.other + "o0001": 0} {
				if keys, err := p.Informer.GetIndexer().IndexKeys("i", name); err != nil || len(keys) != want {
					t.Errorf("version %s: %q has %d keys, %v", c.version, name, len(keys), err)
				}
			}
			p.Stop()
		}
	})
}

func TestAnInterruptedListIsNotServedAnInterruptedRelistIs(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t)
		for i := range 2000 {
			f.Put(source.ConfigMap(fmt.Sprintf("o%04d", i)))
		}
		p := process.Launch(t, testsupport.Path(t), f, nil)
		path := interrupt(f, p)
		if p.Informer.HasSynced() || len(p.Informer.GetStore().List()) != 0 {
			t.Error("served before the list was complete")
		}

		f.Hold = make(chan struct{})
		p = process.Launch(t, path, f, nil)
		r, _ := recorder.Add(t, p.Informer)
		p.Run()
		bubble.Settle()
		if p.Informer.HasSynced() || len(p.Informer.GetStore().List()) != 0 {
			t.Error("half a list is served")
		}
		r.Expect(t)
		f.Remove("o0000") // It was on the first page.
		close(f.Hold)
		bubble.Settle()
		f.With(func() { f.Hold = nil })
		process.ExpectStore(t, p.Informer, f)
		if got := r.Take(); len(got) != 1999 && len(got) != 2000 {
			t.Errorf("%d notifications, the first is %s", len(got), got[0])
		}
		p.Stop()

		// And one that ends between two pages of a relist.
		f.Put(source.ConfigMap("o0001"), source.ConfigMap("o1999"))
		path = interrupt(f, process.Launch(t, p.Path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.NeverResume = true }))
		f.Hold = make(chan struct{})
		p = process.Launch(t, path, f, nil).Run()
		if st := p.Informer.Status(); !p.Informer.HasSynced() || st.Objects != 1999 || st.StartedFrom != "disk" {
			t.Errorf("after an interrupted relist: %+v", st)
		}
		close(f.Hold)
		bubble.Settle()
		process.ExpectStore(t, p.Informer, f)
		if st := p.Informer.Status(); st.Relists != 0 || st.Resumes != 1 {
			t.Errorf("an interrupted relist has changed something: %+v", st)
		}
	})
}

// TestAnInterruptedInitialListThatBeginsAgainTellsOfWhatIsReplacedMeanwhile: a durable handler
// was notified of an object before the crash, and the deletion of that object comes behind the
// undelivered deltas and before the list reads its successor.
func TestAnInterruptedInitialListThatBeginsAgainTellsOfWhatIsReplacedMeanwhile(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		first, goOn := &recorder.Recorder{}, make(chan struct{})
		waits := cache.ResourceEventHandlerDetailedFuncs{AddFunc: func(obj any, initial bool) {
			if first.OnAdd(obj, initial); source.Key(obj) == "ns/c" {
				<-goOn
			}
		}}
		if _, err := p.Informer.AddDurableEventHandler("d", waits, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		f.Remove("b")
		bubble.Settle()
		first.Expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
		crashed := p.Crash()
		close(goOn)
		p.Stop()

		q := process.Launch(t, crashed, f, nil)
		second := &recorder.Recorder{}
		goOn = make(chan struct{})
		handler := cache.ResourceEventHandlerDetailedFuncs{AddFunc: second.OnAdd, UpdateFunc: second.OnUpdate, DeleteFunc: func(obj any) {
			second.OnDelete(obj)
			<-goOn
		}}
		if _, err := q.Informer.AddDurableEventHandler("d", handler, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		q.Run()
		bubble.Settle()
		f.Remove("a")
		f.Put(source.ConfigMap("a"))
		bubble.Settle()
		close(goOn)
		bubble.Settle()
		second.Expect(t, "delete ns/b@4", "delete ns/a@5", "add ns/a@6 initial", "add ns/c@3 initial")
	})
}
