package warmwatch_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// isCluster makes the API server tell this identity, or this error.
func isCluster(id string, err error) setup {
	return func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
		o.ClusterID = func(context.Context) (string, error) { return id, err }
	}
}

var refusals = map[string]error{
	"forbidden": apierrors.NewForbidden(configMaps.GroupResource(), "", nil),
	"not found": apierrors.NewNotFound(configMaps.GroupResource(), ""),
	"no answer": nil, // With an empty identity.
}

// TestAKnownClusterThatCannotBeAskedIsNotTrusted: the stored objects are served until the
// server has answered, and then compared with the server's, by content.
func TestAKnownClusterThatCannotBeAskedIsNotTrusted(t *testing.T) {
	for name, refusal := range refusals {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newHistory(t)
				path := filled(t, f, isCluster("one", nil))
				// Another cluster, whose versions and names are the same.
				f.restore(200, at("100", "uid-1", "a", "y"), z())
				f.hold = make(chan struct{})
				p := launch(t, path, f, isCluster("", refusal))
				r, _ := add(t, p.informer)
				p.run()
				settle()
				r.expectInAnyOrder(t, "add ns/a@100 initial", "add ns/b@101 initial", "add ns/z@102 initial")
				close(f.hold)
				settle()
				f.with(func() { f.hold = nil })
				r.expectInAnyOrder(t, "lost ns/b@101", "update ns/a@100→100")
				p.expectHistory(f, `objects of cluster "one" are stored`)
				p.expectRequests(f, "LIST limit=500", "WATCH rv=200")
				f.restart()
				settle()
				if st := p.informer.Status(); st.Relists != 2 || strings.Contains(st.Reason, "cluster") {
					t.Errorf("a later list: %+v", st)
				}
				p.stop()
				f.takeRequests()

				// The stored objects are of an unknown cluster now.
				p = launch(t, path, f, isCluster("", refusal)).run()
				settle()
				p.expectHistory(f, "")
				p.stop()
				p = launch(t, path, f, isCluster("two", nil)).run()
				settle()
				p.expectHistory(f, "")
				p.stop()
				p = launch(t, path, f, isCluster("one", nil)).run()
				settle()
				p.expectHistory(f, "cluster differs")
			})
		})
	}
}

// TestAnInterruptedRelistOfAnUnknownClusterGoesOn in the next process.
func TestAnInterruptedRelistOfAnUnknownClusterGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		for i := range 2000 {
			f.put(configMap(fmt.Sprintf("o%04d", i), "x"))
		}
		path := filled(t, f, isCluster("one", nil))
		f.put(configMap("o0001", "y"))
		path = interrupt(f, launch(t, path, f, isCluster("", refusals["forbidden"])))
		p := launch(t, path, f, isCluster("", refusals["forbidden"])).run()
		settle()
		p.expectHistory(f, `objects of cluster "one" are stored`)
	})
}

// TestAClusterThatIsKnownAtLastIsStoredAtOnce, not with the next event.
func TestAClusterThatIsKnownAtLastIsStoredAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newHistory(t)
		path := filled(t, f, nil)
		p := launch(t, path, f, isCluster("one", nil)).run()
		settle() // Nothing happens.
		path = p.crash()
		p.stop()
		f.takeRequests()
		other := newSource(t, configMap("a", "of two"))
		other.rv = 200
		p = launch(t, path, other, isCluster("two", nil)).run()
		settle()
		p.expectHistory(other, "cluster differs")
		want := []string{"LIST limit=500", "WATCH rv=200"}
		if diff := cmp.Diff(want, other.takeRequests()); diff != "" {
			t.Errorf("unexpected requests (-want +got):\n%s", diff)
		}
	})
}

func TestAnotherClusterIsNotBelieved(t *testing.T) {
	cluster := func(id string, err error) setup {
		return func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
			o.ClusterID = func(context.Context) (string, error) { return id, err }
		}
	}
	for _, c := range []struct {
		name   string
		second setup
		told   []string
		relist int
	}{
		{"the same cluster", cluster("one", nil), []string{"add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3"}, 0},
		{"another cluster", cluster("two", nil), []string{"add ns/a@1 initial", "add ns/b@2 initial", "lost ns/b@2", "update ns/a@1→1"}, 1},
		{"a cluster that does not tell", cluster("", apierrors.NewForbidden(configMaps.GroupResource(), "", nil)), []string{"add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3"}, 1},
		{"nobody asks", nil, []string{"add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a", "x"), configMap("b"))
				path := filled(t, f, cluster("one", nil))
				f.put(configMap("a", "y"))
				other := f
				if c.name == "another cluster" {
					// It counts as the first one does.
					other = newSource(t, configMap("a", "of two"))
					other.rv = 100
				}
				other.hold = make(chan struct{})
				p := launch(t, path, other, c.second)
				r, _ := add(t, p.informer)
				p.run()
				settle()
				close(other.hold)
				settle()
				got := r.take()
				slices.Sort(got[min(2, len(got)):])
				if diff := cmp.Diff(c.told, got); diff != "" {
					t.Errorf("unexpected notifications (-want +got):\n%s", diff)
				}
				expectStore(t, p.informer, other)
				if st := p.informer.Status(); st.Relists != c.relist {
					t.Errorf("status: %+v", st)
				}
			})
		})
	}
}

func TestTheClusterIsAskedUntilItAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		var asked atomic.Int32
		var known atomic.Bool
		p := launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
			o.ClusterID = func(context.Context) (string, error) {
				if asked.Add(1); known.Load() {
					return "one", nil
				}
				return "", errUnreachable
			}
		}).run()
		settle()
		p.expectRequests(f)
		if asked.Load() < 3 || p.informer.HasSynced() || p.informer.Status().Phase != warmwatch.PhaseDisconnected {
			t.Errorf("asked %d times, status %+v", asked.Load(), p.informer.Status())
		}
		known.Store(true)
		settle()
		if !p.informer.HasSynced() {
			t.Error("not synced")
		}
		asked.Store(0)
		f.restart()
		settle()
		if asked.Load() != 0 {
			t.Error("asked again")
		}
	})
}

// TestAnExpiredTokenIsNoAnswer: until the server tells which cluster it is, the stored objects
// are served, in the next process too.
func TestAnExpiredTokenIsNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		path := filled(t, f, isCluster("one", nil))
		for range 2 {
			p := launch(t, path, f, isCluster("", apierrors.NewUnauthorized("expired"))).run()
			advance(time.Minute)
			if !p.informer.HasSynced() || len(p.informer.GetStore().List()) != 2 {
				t.Errorf("synced: %v, %d objects", p.informer.HasSynced(), len(p.informer.GetStore().List()))
			}
			p.stop()
		}
		f.requests = nil
		p := launch(t, path, f, isCluster("one", nil)).run()
		settle()
		if st := p.informer.Status(); st.Resumes != 1 || st.Relists != 0 {
			t.Errorf("%+v", st)
		}
	})
}
