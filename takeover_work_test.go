package warmwatch_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/workqueue"
)

// addItems adds items to a workqueue of the Cache.
func addItems(t *testing.T, p *process, name string, items ...string) *workqueue.Queue[string] {
	t.Helper()
	q, err := workqueue.New(p.cache.Workqueues(), name, workqueue.Options[string]{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.ShutDown)
	for _, item := range items {
		q.Add(item)
	}
	return q
}

// expectItems takes all items of a workqueue and is done with them.
func expectItems(t *testing.T, q *workqueue.Queue[string], want ...string) {
	t.Helper()
	var got []string
	for q.Len() > 0 {
		item, _ := q.Get()
		got = append(got, item)
		q.Done(item)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected items (-want +got):\n%s", diff)
	}
}

func expectWorkqueues(t *testing.T, p *process, want ...workqueue.Status) {
	t.Helper()
	if diff := cmp.Diff(want, p.cache.Status().Workqueues); diff != "" {
		t.Errorf("unexpected workqueues (-want +got):\n%s", diff)
	}
}

// workDuringRollingUpdate is two processes with work: what the file owes, and what there is in memory.
type workDuringRollingUpdate struct {
	f            *source
	hold, second *process
	r            *works                   // Of the second process, failing.
	shared       *workqueue.Queue[string] // Likewise.
}

func beginWork(t *testing.T) *workDuringRollingUpdate {
	t.Helper()
	u := &workDuringRollingUpdate{f: newSource(t, configMap("a"), configMap("b"), configMap("c"), configMap("d"))}
	path := testsupport.Path(t)
	first := launch(t, path, u.f, nil)
	r := addReconcilerNamed(t, first, "r")
	addReconcilerNamed(t, first, "r of the first")
	r.set(nil)
	addItems(t, first, "shared", "first")
	addItems(t, first, "of the first", "x", "y")
	first.run()
	settle()
	r.expect(t, "ns/a@1", "ns/b@2", "ns/c@3", "ns/d@4")
	r.set(fail)
	u.f.remove("b")
	settle()
	expectWaiting(t, first, workqueue.Status{Name: "r", Keys: 1}, workqueue.Status{Name: "r of the first", Keys: 4})
	first.stop()

	u.hold = launch(t, path, newSource(t), nil) // It does nothing else.
	u.second = launch(t, path, u.f, impatient)
	u.r = addReconcilerNamed(t, u.second, "r")
	u.r.set(nil)
	u.second.run()
	settle()
	u.r.expect(t, "ns/a@1", "ns/c@3", "ns/d@4")
	u.r.set(fail)
	u.f.remove("c")
	u.shared = addItems(t, u.second, "shared", "done", "second")
	item, _ := u.shared.Get()
	u.shared.Done(item)
	addItems(t, u.second, "of the second", "z")
	settle()
	expectWaiting(t, u.second, workqueue.Status{Name: "r", Keys: 1})
	if !u.second.cache.Status().MemoryOnly {
		t.Error("the second process has the file")
	}
	return u
}

// takeOver ends the process that holds the file, and returns each image of the file until it has been
// taken over and written to.
func (u *workDuringRollingUpdate) takeOver(t *testing.T) (images []string) {
	t.Helper()
	u.hold.stop()
	var last []byte
	for range 400 {
		now := testsupport.ReadUsed(t, u.second.path)
		if !bytes.Equal(now, last) {
			images, last = append(images, u.second.crash()), now
		}
		advance(10 * time.Millisecond)
	}
	if st := u.second.cache.Status(); st.MemoryOnly || st.TakenOver.IsZero() {
		t.Fatalf("the file was not taken over: %v", st.Err)
	}
	return images
}

// TestWorkOfATakenOverFileIsDone, and what was added from memory too (Q5, Q6).
func TestWorkOfATakenOverFileIsDone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := beginWork(t)
		u.takeOver(t)
		expectWaiting(t, u.second, workqueue.Status{Name: "r", Keys: 2}, workqueue.Status{Name: "r of the first", Absent: true, Keys: 4})
		expectWorkqueues(t, u.second, workqueue.Status{Name: "of the first", Absent: true, Keys: 2},
			workqueue.Status{Name: "of the second", Keys: 1}, workqueue.Status{Name: "shared", Keys: 2})
		u.r.set(nil)
		other := addReconcilerNamed(t, u.second, "r of the first")
		other.set(nil)
		advance(20 * time.Minute)
		u.r.expect(t, "ns/b is gone, deleted ns/b@5", "ns/c is gone, deleted ns/c@6")
		other.expectEach(t, "ns/c", "ns/a@1", "ns/b is gone, deleted ns/b@5", "ns/c is gone, deleted ns/c@3", "ns/d@4")
		expectItems(t, u.shared, "first", "second")
		expectItems(t, addItems(t, u.second, "of the first"), "x", "y")
		settle()
		u.second.stop()
		if n, m := keysIn(t, u.second.path, "deleted"), keysIn(t, u.second.path, "work"); n != 0 || m != 1 {
			t.Errorf("the file has %d deleted objects, and %d keys", n, m)
		}
	})
}

// TestANameThatIsForgottenBeforeATakeoverStaysForgotten: handler, reconciler and workqueue, also if the
// informer did not run yet.
func TestANameThatIsForgottenBeforeATakeoverStaysForgotten(t *testing.T) {
	for _, runs := range []bool{true, false} {
		t.Run(fmt.Sprintf("the informer runs: %t", runs), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				u := beginWork(t)
				second := u.second
				if !runs {
					second.stop()
					second = launch(t, second.path, u.f, impatient)
				}
				err := errors.Join(second.informer.ForgetDurableEventHandler("r of the first"), second.cache.Workqueues().Forget("of the first"))
				if err != nil {
					t.Fatal(err)
				}
				if !runs {
					second.run()
				}
				u.hold.stop()
				settle()
				if st := second.cache.Status(); st.MemoryOnly {
					t.Fatal(st.Err)
				}
				want := []workqueue.Status{{Name: "shared", Keys: 1}}
				if runs {
					want = []workqueue.Status{{Name: "of the second", Keys: 1}, {Name: "shared", Keys: 2}}
				}
				for i := range want {
					want[i].Absent = !runs
				}
				expectWorkqueues(t, second, want...)
				path := second.crash()
				next := launch(t, second.crash(), u.f, nil)
				for _, h := range next.informer.Status().Handlers {
					if h.Name == "r of the first" {
						t.Errorf("the file has %+v", h)
					}
				}
				for _, r := range next.informer.Status().Reconcilers {
					if r.Name == "r of the first" {
						t.Errorf("the file has %+v", r)
					}
				}
				if n := keysStartingWith(t, path, "deleted", "k14/r of the first/"); n != 0 {
					t.Errorf("the file has %d deleted objects of it", n)
				}
			})
		})
	}
}

// keysStartingWith counts keys of a bucket in the file.
func keysStartingWith(t *testing.T, path, bucket, prefix string) (n int) {
	t.Helper()
	inFile(t, path, func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
			b := space.Bucket([]byte(bucket))
			if b == nil {
				return nil
			}
			return b.ForEach(func(k, _ []byte) error {
				if bytes.HasPrefix(k, []byte(prefix)) {
					n++
				}
				return nil
			})
		})
	})
	return n
}

// TestACrashDuringATakeoverLosesNoWork: the next process does all that the file and the process in memory
// had (Q5, Q6).
func TestACrashDuringATakeoverLosesNoWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := beginWork(t)
		images := u.takeOver(t)
		u.second.stop()
		if len(images) < 2 {
			t.Fatalf("%d images of the file", len(images))
		}
		for i, image := range images {
			p := launch(t, image, u.f, nil)
			r, other := addReconcilerNamed(t, p, "r"), addReconcilerNamed(t, p, "r of the first")
			r.set(nil)
			other.set(nil)
			p.run()
			advance(20 * time.Minute)
			r.expectEach(t, "ns/c", "ns/b is gone, deleted ns/b@5", "ns/c is gone, deleted ns/c@6")
			c := "ns/c is gone, deleted ns/c@6" // What the first process knew, or what the watch tells of it.
			if i > 0 {
				c = "ns/c is gone, deleted ns/c@3"
			}
			other.expectEach(t, "ns/c", "ns/a@1", "ns/b is gone, deleted ns/b@5", c, "ns/d@4")
			shared := addItems(t, p, "shared")
			if shared.Lost() {
				t.Errorf("image %d has lost items", i)
			}
			if i == 0 {
				expectItems(t, shared, "first")
			} else {
				expectItems(t, shared, "first", "second")
				expectItems(t, addItems(t, p, "of the second"), "z")
			}
			expectItems(t, addItems(t, p, "of the first"), "x", "y")
			p.stop()
		}
	})
}

// TestATakeoverThatIsPutOffTellsNothing: neither deletions nor work of an informer that is ready, while
// another one is not.
func TestATakeoverThatIsPutOffTellsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		u := beginWork(t)
		u.r.set(nil)
		u.f.remove("d")
		settle()
		u.r.expect(t, "ns/c is gone, deleted ns/c@6", "ns/d is gone, deleted ns/d@7")
		down := newSource(t)
		down.setDown(errUnreachable)
		other, err := u.second.cache.NewSharedIndexInformer(down, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps, Name: "other"})
		if err != nil {
			t.Fatal(err)
		}
		end := start(t, other)
		u.hold.stop()
		settle()
		if st := u.second.cache.Status(); !st.MemoryOnly {
			t.Fatal("the file was taken over")
		}
		u.r.expect(t)
		expectItems(t, u.shared, "second")
		down.setDown(nil)
		advance(20 * time.Minute)
		u.r.expectEach(t, "ns/b", "ns/b is gone, deleted ns/b@5", "ns/c is gone, deleted ns/c@3", "ns/d is gone, deleted ns/d@4")
		expectItems(t, u.shared, "first")
		end()
	})
}
