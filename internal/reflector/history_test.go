package reflector

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
)

// past is a History of the objects of a memory, of which the last one can be told.
type past struct {
	m      *memory
	last   checkpoint.ObjectVersion
	misses int // Calls.
	stored int
}

func (p *past) Empty() bool {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	return len(p.m.objects) == 0
}

func (p *past) Stored() int { return p.stored }

func (p *past) Comparable(string) bool { return false }

func (p *past) Misses(obj runtime.Object) bool {
	p.misses++
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	cm := obj.(*corev1.ConfigMap)
	return p.m.objects[cm.Name] != cm.ResourceVersion
}

func (p *past) Last() (checkpoint.ObjectVersion, bool) { return p.last, p.last.Name != "" }

func (p *past) Listed(v checkpoint.ObjectVersion) { p.last = v }

// withPast gives a world a History whose last object is of this version.
func (w *world) withPast(last string) *past {
	p := &past{m: w.store}
	if last != "" {
		p.last = checkpoint.VersionOf(configMap(last))
	}
	w.opts.History = p
	return p
}

func TestTheObjectThatWasChangedLastIsAskedFor(t *testing.T) {
	const name = "LIST rv=5 limit=1 metadata.name=z NotOlderThan"
	for _, c := range []struct {
		name       string
		server     string
		last       string
		answer     answer
		asked      bool
		reason     string // Of a relist, if there is one.
		impatience time.Duration
	}{
		{name: "it is as it was", server: "9", last: "z@5", answer: lists("9", "z@5"), asked: true},
		{name: "it has changed", server: "9", last: "z@5", answer: lists("9", "z@8"), asked: true},
		{name: "it is gone", server: "9", last: "z@5", answer: lists("9"), asked: true},
		{name: "it was another one", server: "9", last: "z@5", answer: lists("9", "z@4"), asked: true, reason: "another history: the store does not have z as the server does, at version 4"},
		{name: "it was another one, that had this version later", server: "9", last: "z@4", answer: lists("9", "z@5"), asked: true, reason: "another history: the store does not have z as the server does, at version 5"},
		{name: "the answer is of another one that is as it was", server: "9", last: "z@5", answer: lists("9", "a@3"), asked: true},
		{name: "the answer is of another one that was not so", server: "9", last: "z@5", answer: lists("9", "b@4"), asked: true, reason: "another history: the store does not have b as the server does, at version 4"},
		{name: "the answer is of another time", server: "9", last: "z@5", answer: lists("3"), asked: true, reason: "another history: the server answered at version 3, below resourceVersion 5"},
		{name: "the field selector is not known", server: "9", last: "z@5", answer: fails(apierrors.NewBadRequest("field label not supported")), asked: true},
		{name: "the network fails", server: "9", last: "z@5", answer: fails(errNetwork), asked: true},
		{name: "the server is at the same version", server: "5", last: "z@5"},
		{name: "the server has no version", server: "", last: "z@5"},
		{name: "the last object is not known", server: "9"},
		{name: "no answer comes", server: "9", last: "z@5", answer: hangs, asked: true, impatience: askPatience},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", lists(c.server))
				w.withPast(c.last)
				w.store.objects["z"] = "5"
				want := []string{question5}
				if c.asked {
					w.server.then(c.answer)
					want = append(want, name)
				}
				if c.reason != "" {
					w.server.then(lists("9", "a@3"), opens())
					want = append(want, "LIST limit=500", "WATCH rv=9")
				} else {
					w.server.then(opens())
					want = append(want, "WATCH rv=5")
				}
				w.run()
				advance(c.impatience + refusalTime)
				w.server.requests.expect(t, want...)
				if c.reason != "" && (w.store.lastHow() != Relisting{Reason: c.reason, Rewrite: true, Rewound: true, Newest: true}) {
					t.Errorf("relisted by %+v", w.store.lastHow())
				}
			})
		})
	}
}

func TestTheNamespaceOfTheLastObjectIsAskedForToo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("9"), lists("9"), opens())
		w.withPast("z@5").last.Namespace = "ns"
		w.run()
		w.server.requests.expect(t, question5, "LIST rv=5 limit=1 metadata.name=z,metadata.namespace=ns NotOlderThan", "WATCH rv=5")
	})
}

func TestACancelledContextEndsTheQuestionForTheLastObject(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("9"), hangs)
		w.withPast("z@5")
		w.run()
		w.stop()
		if w.elapsed() != 0 {
			t.Errorf("it took %v", w.elapsed())
		}
		w.server.requests.take()
	})
}

func TestAnAnswerBelowTheStoreIsOfAnotherHistory(t *testing.T) {
	const below = "another history: the server answered at version 4, below resourceVersion "
	t.Run("at the start", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, "5", lists("4"), lists("4", "b@4"), opens()).run()
			w.server.requests.expect(t, question5, "LIST limit=500", "WATCH rv=4")
			w.store.calls.expect(t, "begin rewrite rewound", "item b@4", "finish 4", "replace 4")
			w.observed.expect(t, "contact", "relisting: "+below+"5", "contact", "live since 0s")
		})
	})
	t.Run("before another watch", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := openWorld(t)
			w.server.then(lists("4"), lists("4", "b@4"), opens())
			w.server.last().end()
			advance(firstBackoff)
			w.server.requests.expect(t, "LIST rv=6 limit=1 NotOlderThan", "LIST limit=500", "WATCH rv=4")
			w.store.calls.expect(t, "begin rewrite rewound", "item b@4", "finish 4", "replace 4")
		})
	})
}

func TestAnAnswerWithMoreThanOneObjectIsNotReadToItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		items := make([]string, 10*maxCheckedItems)
		for i := range items {
			items[i] = "a@3"
		}
		w := newWorld(t, "5", lists("5", items...), opens())
		p := w.withPast("")
		w.run()
		if p.misses != maxCheckedItems {
			t.Errorf("%d objects were looked up", p.misses)
		}
		w.server.requests.expect(t, question5, "WATCH rv=5")
	})
}

func TestTheNewestObjectOfAList(t *testing.T) {
	for _, c := range []struct {
		name string
		see  []string // With a minus: it is gone.
		want string
	}{
		{"one", []string{"a@3"}, "a@3"},
		{"the newest is in between", []string{"a@3", "b@10", "c@9"}, "b@10"},
		{"nothing", nil, ""},
		{"a version says nothing", []string{"a@3", "b@x"}, ""},
		{"the first version says nothing", []string{"a@", "b@7"}, ""},
		{"it was deleted meanwhile", []string{"a@3", "b@10", "-b@11"}, ""},
		{"another one was deleted meanwhile", []string{"a@3", "b@10", "-a@11"}, "b@10"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var n newestObject
			for _, s := range c.see {
				if s[0] == '-' {
					n.gone(configMap(s[1:]))
				} else {
					n.see(configMap(s), "")
				}
			}
			want := checkpoint.ObjectVersion{}
			if c.want != "" {
				want = checkpoint.VersionOf(configMap(c.want))
			}
			if got := n.known(); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}
