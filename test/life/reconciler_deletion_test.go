package life_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/cachefile"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
	"github.com/warmwatch/warmwatch/workqueue"
)

// TestAnObjectThatIsDeletedAgainIsReconciledAsItWasThen: it has the uid that it had, because etcd was put back or
// because a selector selected it again, and its first deletion is not reconciled yet. Which one is the later is not in
// the versions: a server that was put back uses lower ones.
func TestAnObjectThatIsDeletedAgainIsReconciledAsItWasThen(t *testing.T) {
	type world struct {
		f    *source.Source
		path string
		p    *process.Process
		w    *works
	}
	slowly := func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
		o.DurableDelay, o.CommitInterval = 30*time.Second, 30*time.Second
	}
	again := func(version string) runtime.Object { return source.At(version, "uid-1", "b", "again") }
	restart := func(t *testing.T, x *world) {
		x.p.Stop()
		x.p = process.Launch(t, x.path, x.f, nil)
		x.w = addReconcilerNamed(t, x.p, "r")
		x.w.set(fail)
		x.p.Run()
		bubble.Settle()
	}
	putBack := func(x *world) { restore(x.f, 401, again("400"), source.At("401", "uid-2", "z", "")); bubble.Settle() }
	seen := func(x *world) {
		x.f.Put(source.ConfigMap("b", "new"))
		bubble.Settle()
		x.f.Remove("b")
		bubble.Settle()
	}
	for name, c := range map[string]struct {
		setup process.Setup
		quick bool // The first deletion is the last word of the server before it is put back.
		then  func(*testing.T, *world)
		want  string
	}{
		"the server was put back": {then: func(_ *testing.T, x *world) {
			putBack(x)
			seen(x)
		}, want: "403"},
		"and the process was restarted": {then: func(t *testing.T, x *world) {
			putBack(x)
			restart(t, x)
			seen(x)
		}, want: "403"},
		"and nobody had the name": {then: func(t *testing.T, x *world) {
			x.p.Stop()
			x.p = process.Launch(t, x.path, x.f, nil).Run()
			bubble.Settle()
			putBack(x)
			x.w = addReconcilerNamed(t, x.p, "r")
			bubble.Settle()
			seen(x)
		}, want: "403"},
		"and the handler hears of the first one later": {setup: slowly, quick: true, then: func(_ *testing.T, x *world) {
			putBack(x)
			seen(x)
		}, want: "403"},
		"it is selected again, and a list finds that it is gone": {then: func(t *testing.T, x *world) {
			x.f.Put(again(""))
			bubble.Settle()
			restart(t, x)
			x.f.With(func() { delete(x.f.Objects, "ns/b"); x.f.RV++ }) // Nobody sees it.
			x.f.Restart()
			bubble.Settle()
		}, want: "1003"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				x := &world{f: source.New(t), path: testsupport.Path(t)}
				x.f.RV = 999
				x.f.Put(source.ConfigMap("b", "old"), source.ConfigMap("z"))
				x.p = process.Launch(t, x.path, x.f, c.setup)
				x.w = addReconcilerNamed(t, x.p, "r")
				x.w.set(nil)
				x.p.Run()
				bubble.Settle()
				x.w.expect(t, "ns/b@1000", "ns/z@1001")
				x.w.set(fail)
				x.f.Remove("b")
				if !c.quick {
					bubble.Settle()
				}
				c.then(t, x)
				x.w.set(nil)
				bubble.Advance(40 * time.Minute)
				x.w.expectEach(t, "ns/z@", "ns/b is gone, deleted ns/b@"+c.want)
				if n := cachefile.KeyCount(t, x.p.Crash(), "deleted"); n != 0 {
					t.Errorf("%d deleted objects are left in the file", n)
				}
			})
		})
	}
}

// TestADeletionWhoseKeyIsDamagedStopsNoReconciler: one bit of its key in the workqueue, or of that of its object, makes
// it another one. All objects are reconciled, and the deletion with what is left of it (D4, S2).
func TestADeletionWhoseKeyIsDamagedStopsNoReconciler(t *testing.T) {
	for bucket, deletion := range map[string]string{
		"work":    "ns/a is gone, deleted ns/a@3",
		"deleted": "ns/a is gone",
	} {
		t.Run(bucket, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
				p := process.Launch(t, testsupport.Path(t), f, nil)
				w := addReconciler(t, p, 1)
				p.Run()
				bubble.Settle()
				w.expect(t, "ns/a@1", "ns/b@2")
				w.set(fail)
				f.Remove("a")
				bubble.Settle()
				path := p.Crash()
				cachefile.ChangeBucket(t, path, bucket, func(b *bolt.Bucket) error {
					key, value := b.Cursor().First()
					value = bytes.Clone(value)
					other := bytes.Replace(key, []byte("ns/a"), []byte("ns/c"), 1)
					return errors.Join(b.Delete(key), b.Put(other, value))
				})
				p = process.Launch(t, path, f, nil)
				w = addReconciler(t, p, 1)
				p.Run()
				bubble.Settle()
				w.expectEach(t, "", deletion, "ns/b@2", "ns/c is gone")
			})
		})
	}
}

// TestADeletionIsReconciledWithTheLastKnownObject: also after a restart, after an error, and where the
// name has another object by then (D4).
func TestADeletionIsReconciledWithTheLastKnownObject(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		w := addReconciler(t, p, 3)
		p.Run()
		bubble.Settle()
		w.expect(t, "ns/a@1", "ns/b@2", "ns/c@3")
		w.set(fail)
		f.Remove("a")
		f.Remove("b")
		bubble.Settle()
		f.Put(source.ConfigMap("b"))
		bubble.Settle()
		f.Remove("b")
		bubble.Settle()
		f.Put(source.ConfigMap("c"))
		bubble.Settle()
		w.expect(t)
		expectWaiting(t, p, workqueue.Status{Name: "r", Keys: 3})
		for range 2 { // What nobody has reconciled stays.
			path := p.Crash()
			p = process.Launch(t, path, f, nil)
			w = addReconciler(t, p, 1)
			w.set(fail)
			p.Run()
			bubble.Settle()
		}
		w.set(nil)
		bubble.Advance(20 * time.Minute) // client-go's rate limiter waits no longer.
		w.expect(t, "ns/a is gone, deleted ns/a@4", "ns/b is gone, deleted ns/b@5, deleted ns/b@7", "ns/c@8")
		expectWaiting(t, p, workqueue.Status{Name: "r"})
		if n := cachefile.KeyCount(t, p.Crash(), "deleted"); n != 0 {
			t.Errorf("%d deleted objects are left in the file", n)
		}
	})
}

// TestADeletionThatComesWhileAnEarlierOneIsReconciledIsReconciled, with its object, which is selected again and again.
func TestADeletionThatComesWhileAnEarlierOneIsReconciledIsReconciled(t *testing.T) { // D4
	for _, seen := range []bool{true, false} {
		t.Run(fmt.Sprintf("it is seen: %t", seen), func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("b"))
				p := process.Launch(t, testsupport.Path(t), f, nil)
				w := addReconcilerNamed(t, p, "r")
				w.set(nil)
				p.Run()
				bubble.Settle()
				w.expect(t, "ns/b@1")
				leave := make(chan struct{})
				w.set(func(context.Context, string) error { <-leave; return nil })
				again := source.ConfigMap("b")
				again.SetUID("uid-1")
				f.Remove("b")
				bubble.Settle()
				f.Put(again)
				bubble.Settle()
				want := "ns/b is gone, deleted ns/b@4"
				if !seen {
					f.SetDown(source.ErrUnreachable)
					f.CloseWatches()
					want = "ns/b is gone, deleted ns/b@3"
				}
				f.Remove("b")
				f.Compact()
				f.SetDown(nil)
				bubble.Settle()
				close(leave)
				bubble.Settle()
				w.expect(t, "ns/b is gone, deleted ns/b@2", want)
				p.Stop()
			})
		})
	}
}
