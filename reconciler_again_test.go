package warmwatch_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestAnObjectThatIsDeletedAgainIsReconciledAsItWasThen: it has the uid that it had, because etcd was put back or
// because a selector selected it again, and its first deletion is not reconciled yet. Which one is the later is not in
// the versions: a server that was put back uses lower ones.
func TestAnObjectThatIsDeletedAgainIsReconciledAsItWasThen(t *testing.T) {
	type world struct {
		f    *source
		path string
		p    *process
		w    *works
	}
	slowly := func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
		o.DurableDelay, o.CommitInterval = 30*time.Second, 30*time.Second
	}
	again := func(version string) runtime.Object { return at(version, "uid-1", "b", "again") }
	restart := func(t *testing.T, x *world) {
		x.p.stop()
		x.p = launch(t, x.path, x.f, nil)
		x.w = addReconcilerNamed(t, x.p, "r")
		x.w.set(fail)
		x.p.run()
		settle()
	}
	putBack := func(x *world) { x.f.restore(401, again("400"), at("401", "uid-2", "z", "")); settle() }
	seen := func(x *world) {
		x.f.put(configMap("b", "new"))
		settle()
		x.f.remove("b")
		settle()
	}
	for name, c := range map[string]struct {
		setup setup
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
			x.p.stop()
			x.p = launch(t, x.path, x.f, nil).run()
			settle()
			putBack(x)
			x.w = addReconcilerNamed(t, x.p, "r")
			settle()
			seen(x)
		}, want: "403"},
		"and the handler hears of the first one later": {setup: slowly, quick: true, then: func(_ *testing.T, x *world) {
			putBack(x)
			seen(x)
		}, want: "403"},
		"it is selected again, and a list finds that it is gone": {then: func(t *testing.T, x *world) {
			x.f.put(again(""))
			settle()
			restart(t, x)
			x.f.with(func() { delete(x.f.objects, "ns/b"); x.f.rv++ }) // Nobody sees it.
			x.f.restart()
			settle()
		}, want: "1003"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				x := &world{f: newSource(t), path: testsupport.Path(t)}
				x.f.rv = 999
				x.f.put(configMap("b", "old"), configMap("z"))
				x.p = launch(t, x.path, x.f, c.setup)
				x.w = addReconcilerNamed(t, x.p, "r")
				x.w.set(nil)
				x.p.run()
				settle()
				x.w.expect(t, "ns/b@1000", "ns/z@1001")
				x.w.set(fail)
				x.f.remove("b")
				if !c.quick {
					settle()
				}
				c.then(t, x)
				x.w.set(nil)
				advance(40 * time.Minute)
				x.w.expectEach(t, "ns/z@", "ns/b is gone, deleted ns/b@"+c.want)
				if n := keysIn(t, x.p.crash(), "deleted"); n != 0 {
					t.Errorf("%d deleted objects are left in the file", n)
				}
			})
		})
	}
}
