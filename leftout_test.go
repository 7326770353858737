package warmwatch_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// refuseBad is a transform that refuses bad objects, and returns another Go type for others.
func refuseBad(obj any) (any, error) {
	switch cm := obj.(*corev1.ConfigMap); cm.Data["v"] {
	case "bad":
		return nil, errTransform
	case "secret":
		return &corev1.Secret{ObjectMeta: cm.ObjectMeta}, nil
	}
	return obj, nil
}

// spoiled has the ways in which an informer with the transform refuseBad leaves an object out.
var spoiled = map[string]func(name string) runtime.Object{
	"the transform refuses it":           func(name string) runtime.Object { return configMap(name, "bad") },
	"it is of another type":              func(name string) runtime.Object { return &corev1.Secret{ObjectMeta: configMap(name).ObjectMeta} },
	"the transform returns another type": func(name string) runtime.Object { return configMap(name, "secret") },
}

// launchRefusing is launch with the transform refuseBad.
func launchRefusing(t *testing.T, path string, f *source, change ...setup) *process {
	t.Helper()
	p := launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
		io.TransformVersion = "1"
		for _, c := range change {
			c(o, io)
		}
	})
	if err := p.informer.SetTransform(refuseBad); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *process) expectVersions(want ...string) {
	p.t.Helper()
	if diff := cmp.Diff(want, versions(p.informer.GetStore().List())); diff != "" {
		p.t.Errorf("the store (-want +got):\n%s", diff)
	}
}

// TestWhatIsLeftOutIsNotWhatHadItsNameBefore: the deletion of that has happened.
func TestWhatIsLeftOutIsNotWhatHadItsNameBefore(t *testing.T) { // D2
	for name, spoil := range spoiled {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				p := launchRefusing(t, testsupport.Path(t), f)
				r, d := add2(t, p)
				p.run()
				settle()
				r.take()
				d.take()
				relisted(f, func() {
					f.remove("b")
					f.put(spoil("b"))
				})
				r.expect(t, "lost ns/b@2")
				d.expect(t, "lost ns/b@2")
				p.expectVersions("ns/a@1")
				f.remove("b")
				f.put(configMap("b"))
				settle()
				d.expect(t, "add ns/b@7")
			})
		})
	}
}

// TestWhatIsLeftOutUnderTheNameThatATransformHasGivenAnotherObject: that object is gone.
func TestWhatIsLeftOutUnderTheNameThatATransformHasGivenAnotherObject(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		informer := launch(t, testsupport.Path(t), f, nil).informer
		if err := informer.SetTransform(renames); err != nil {
			t.Fatal(err)
		}
		r, _ := add(t, informer)
		start(t, informer)
		r.expectInAnyOrder(t, "add ns/x-a@1 initial", "add ns/x-b@2 initial")
		relisted(f, func() {
			f.remove("b")
			f.put(configMap("x-b", "bad"))
		})
		r.expect(t, "lost ns/x-b@2")
	})
}

// TestWhatAnotherClusterHasLeftOutIsNotServed, although names and uids are the same.
func TestWhatAnotherClusterHasLeftOutIsNotServed(t *testing.T) {
	for name, spoil := range spoiled {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b", "of one"))
				p := launchRefusing(t, testsupport.Path(t), f, isCluster("one", nil))
				d := addDurable(t, p, "d")
				p.run()
				settle()
				p.stop()
				d.take()

				other := newSource(t, configMap("x"), spoil("b"))
				p = launchRefusing(t, p.path, other, isCluster("two", nil))
				d = addDurable(t, p, "d")
				p.run()
				settle()
				d.expect(t, "lost ns/a@1", "lost ns/b@2", "add ns/x@1")
				p.expectVersions("ns/x@1")
				p.stop()

				other.setDown(errUnreachable)
				p = launchRefusing(t, p.path, other, isCluster("two", nil)).run()
				settle()
				p.expectVersions("ns/x@1")
			})
		})
	}
}

// TestWhatIsLeftOutAndCannotBeReadIsLost: the next list leaves it out again, so if it stayed
// there would be a relist whenever somebody finds that it cannot be read.
func TestWhatIsLeftOutAndCannotBeReadIsLost(t *testing.T) {
	for name, spoil := range spoiled {
		for who, read := range map[string]func(*process){
			"a reader":            func(p *process) { p.informer.GetStore().List() },
			"a reader by its key": func(p *process) { _, _, _ = p.informer.GetStore().GetByKey("ns/b") },
		} {
			t.Run(fmt.Sprintf("%s, found by %s", name, who), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f, path := newSource(t, configMap("a"), configMap("b", "needle")), testsupport.Path(t)
					p := launchRefusing(t, path, f)
					addDurable(t, p, "d")
					p.run()
					settle()
					p.stop()
					flipBits(t, path, "needle")
					f.put(spoil("b"))
					p = launchRefusing(t, path, f)
					p.damaged = true
					d := addDurable(t, p, "d")
					p.run()
					for range 18 { // Less than FullRelistEvery.
						read(p)
						f.bookmark()
						advance(time.Hour)
					}
					d.expect(t, "lost ns/b")
					p.expectVersions("ns/a@1")
					if st := p.informer.Status(); st.Relists != 1 {
						t.Errorf("%d relists, status %+v", st.Relists, st)
					}
				})
			})
		}
	}
}

// TestAnIndexFunctionThatFailsOnWhatIsLeftOut: as long as the object stays, no index is right.
func TestAnIndexFunctionThatFailsOnWhatIsLeftOut(t *testing.T) { // A5
	for name, spoil := range spoiled {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a", "x"), configMap("b", "ancient"))
				p := launchRefusing(t, testsupport.Path(t), f)
				addDurable(t, p, "d")
				p.run()
				settle()
				p.stop()
				f.put(spoil("b"))
				p = launchRefusing(t, p.path, f, func(_ *warmwatch.Options, io *warmwatch.InformerOptions) {
					io.Indexers = cache.Indexers{"v": func(obj any) ([]string, error) {
						v := obj.(*corev1.ConfigMap).Data["v"]
						if v == "ancient" {
							return nil, errors.New("not understood any more")
						}
						return []string{v}, nil
					}}
				})
				d := addDurable(t, p, "d")
				p.run()
				settle()
				d.expect(t, "lost ns/b@2")
				p.expectVersions("ns/a@1")
				if keys, err := p.informer.GetIndexer().IndexKeys("v", "x"); err != nil || len(keys) != 1 || !p.informer.HasSynced() {
					t.Errorf("synced: %v, index: %q, %v", p.informer.HasSynced(), keys, err)
				}
			})
		})
	}
}

// TestAListLogsOnceThatItLeavesObjectsOut, however many they are.
func TestAListLogsOnceThatItLeavesObjectsOut(t *testing.T) {
	for name, spoil := range spoiled {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var mu sync.Mutex
				var lines []string
				logger := funcr.New(func(_, args string) {
					mu.Lock()
					defer mu.Unlock()
					if strings.Contains(args, "out of the cache") {
						lines = append(lines, args)
					}
				}, funcr.Options{})
				f := newSource(t, configMap("a"))
				for i := range 1000 {
					f.put(spoil(fmt.Sprintf("o%d", i)))
				}
				p := launchRefusing(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = &logger }).run()
				settle()
				p.stop()
				if len(lines) != 1 || !strings.Contains(lines[0], `"objects"=1000`) || !strings.Contains(lines[0], `"ns/o`) {
					t.Errorf("%d lines, the last is %q", len(lines), lines[max(len(lines)-1, 0):])
				}
			})
		})
	}
}

// TestWhatIsLeftOutAndDeletedInTheWatch: the transform fails on the last version of an object, and so
// on the event of its deletion.
func TestWhatIsLeftOutAndDeletedInTheWatch(t *testing.T) { // A5, D2
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		p := launch(t, testsupport.Path(t), f, nil)
		if err := p.informer.SetTransform(refuseBad); err != nil {
			t.Fatal(err)
		}
		durable := addDurable(t, p, "d")
		p.run()
		settle()
		durable.take()
		f.put(configMap("a", "bad"))
		f.remove("a")
		f.put(configMap("b", "good"))
		settle()
		durable.expect(t, "lost ns/a@1", "update ns/b@2→5")
		expectStore(t, p.informer, f)
		f.put(configMap("b", "bad"))
		f.with(func() { // One that the store does not have.
			other := configMap("b", "bad")
			other.UID = "other"
			f.recordLocked(watch.Deleted, other)
		})
		settle()
		durable.expect(t)
		if got := versions(p.informer.GetStore().List()); !slices.Equal(got, []string{"ns/b@5"}) {
			t.Errorf("the store has %q", got)
		}
	})
}
