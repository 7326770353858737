package indexer

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// TestAListStaysInMemoryOnlyWhereThereIsRoom: a second list does
// not decode again, and a list does not evict objects that others use.
func TestAListStaysInMemoryOnlyWhereThereIsRoom(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), persist.Options{})
	ix := newIndexer(t, db, nil, -1)
	const objects = 100
	for i := range objects {
		if err := ix.Add(newPod(fmt.Sprintf("pod-%03d", i), "1")); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	all := ix.objects.used
	for budget, want := range map[int64]int{-1: objects, 0: objects, all: objects, all / 2: objects / 2, 1: 0} {
		ix := newIndexer(t, db, nil, budget)
		first, second := sorted(ix.List()), sorted(ix.List())
		same := 0
		for i := range first {
			if first[i] == second[i] {
				same++
			}
		}
		if len(first) != objects || len(second) != objects || same != want {
			t.Errorf("with a budget of %d: %d of %d objects are the same, expected %d", budget, same, len(second), want)
		}
		if n := len(ix.owner.items); n != want {
			t.Errorf("with a budget of %d: %d objects are in memory, expected %d", budget, n, want)
		}
	}

	half := newIndexer(t, db, nil, all/2)
	used, _, err := half.GetByKey("ns/pod-099")
	if err != nil {
		t.Fatal(err)
	}
	half.List()
	if again, _, _ := half.GetByKey("ns/pod-099"); again != used {
		t.Error("a List has driven out what was in use")
	}
}

// set keeps an object, as a write does.
func set(o *Objects, k objectKey, object any, seq uint64, encodedBytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.setLocked(k, object, seq, encodedBytes)
}

// remove forgets an object, as its deletion does.
func remove(o *Objects, k objectKey, seq uint64) {
	o.apply(k.owner, []Change{{Key: k.key, Seq: seq}}, 0)
}

// TestWhatWasReadBeforeAWriteIsNotKept, because the writer's object is newer.
func TestWhatWasReadBeforeAWriteIsNotKept(t *testing.T) {
	o := NewObjects(-1)
	k := objectKey{newOwner(0), "key"}
	o.add(k, "read", 1, 1, 1, true)
	if got, _ := o.get(k, 1); got.object != "read" {
		t.Errorf("it is %v", got.object)
	}
	o.add(k, "read again", 1, 1, 1, true)
	if got, _ := o.get(k, 1); got.object != "read" {
		t.Errorf("it was replaced by its equal: %v", got.object)
	}
	set(o, k, "written", 2, 1)
	o.add(k, "read", 1, 1, 1, false)
	if got, _ := o.get(k, 2); got.object != "written" {
		t.Errorf("it is %v", got.object)
	}
	remove(o, k, 3)
	o.add(k, "read", 1, 1, 1, true)
	o.add(k, "read", 2, 1, 2, false)
	if got, ok := o.get(k, 3); ok {
		t.Errorf("deleted, and there again: %v", got.object)
	}
	set(o, k, "written", 4, 1)
	o.mu.Lock()
	o.removeLocked(k.item()) // There is no room for it.
	o.mu.Unlock()
	o.add(k, "read", 1, 1, 3, true)
	if got, ok := o.get(k, 4); ok {
		t.Errorf("it is %v", got.object)
	}
	o.add(k, "written", 4, 1, 4, true)
	if got, _ := o.get(k, 4); got.object != "written" {
		t.Errorf("it is %v", got.object)
	}
}

// TestAListIsOfOneMoment: while batches replace objects, and some of them are in
// memory and some are not, a list has all objects of one moment.
func TestAListIsOfOneMoment(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	pods := []*corev1.Pod{newPod("always", "1"), newPod("large", "1"), newPod("small", "1"), newPod("little", "1")}
	budget := int64(0)
	for i, kilobytes := range []int{13, 15, 10, 10} {
		pods[i].Annotations["padding"] = strings.Repeat("x", kilobytes<<10)
		if i == 1 || i == 2 { // Also for the small one and the one that is always there.
			budget += itemBytes(objectKey{nil, "ns/" + pods[i].Name}, encoded(t, "ns/"+pods[i].Name, pods[i]).SizeBytes())
		}
	}
	ix := newIndexer(t, db, nil, budget)
	for _, pod := range pods[:2] {
		if err := ix.Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if got := names(ix.List()); len(got) != 2 || got[0] != "always" {
				t.Errorf("listed %v", got)
				return
			}
		}
	})
	fromMemory, batches := 0, testsupport.Rounds(20_000, 2000)
	for i := range batches {
		before, after := pods[1+i%3], pods[1+(i+1)%3]
		w := ix.Writer()
		w.Set("ns/"+after.Name, encoded(t, "ns/"+after.Name, after), false)
		w.Delete("ns/"+before.Name, false)
		if err := w.Commit(nil); err != nil {
			t.Error(err)
		}
		w.Close()
		if i%5 == 0 { // Drives another one out, or brings it back.
			if _, _, err := ix.GetByKey("ns/always"); err != nil {
				t.Error(err)
			}
		}
		if _, ok := ix.objects.all(ix.owner); ok {
			fromMemory++
		}
	}
	close(stop)
	running.Wait()
	t.Logf("all in memory after %d of %d batches", fromMemory, batches)
	if fromMemory == 0 || fromMemory == batches {
		t.Error("that tells nothing")
	}
}

// TestTheBallastIsWithinTheBudget, shared by all calls, and gone when they have ended.
func TestTheBallastIsWithinTheBudget(t *testing.T) {
	for budget, want := range map[int64]int{-1: ballastBytes, 64 << 20: ballastBytes - 1000, 1 << 30: ballastBytes, 8000: 3000, 2000: 0, 1: 0} {
		o := NewObjects(budget)
		o.used = 1000
		first := o.Ballast(newOwner(1))
		second := o.Ballast(newOwner(1))
		if n := len(o.ballast); n != want {
			t.Errorf("with a budget of %d: %d bytes, expected %d", budget, n, want)
		}
		first()
		first()
		if n := len(o.ballast); n != want {
			t.Errorf("with a budget of %d: %d bytes during the second walk, expected %d", budget, n, want)
		}
		second()
		if n := len(o.ballast); n != 0 {
			t.Errorf("with a budget of %d: %d bytes are left", budget, n)
		}
		o.Ballast(newOwner(1))
		if n := len(o.ballast); n != 0 {
			t.Errorf("with a budget of %d: %d bytes for a walk after the first", budget, n)
		}
	}
}

// TestNoBallastWhereNothingIsDecoded, because all objects are in memory.
func TestNoBallastWhereNothingIsDecoded(t *testing.T) {
	o, own := NewObjects(0), newOwner(1)
	set(o, objectKey{own, "a"}, newPod("a", "1"), 1, 100)
	o.Ballast(own)
	if n := len(o.ballast); n != 0 {
		t.Errorf("%d bytes", n)
	}
}

// TestAFirstListKeepsHalfOfTheBudget, and those that come first.
func TestAFirstListKeepsHalfOfTheBudget(t *testing.T) {
	const pods = 100
	value := encoded(t, "ns/000", newPod("000", "1"))
	each := itemBytes(objectKey{key: "ns/000"}, value.SizeBytes())
	for budget, want := range map[int64]int{-1: pods, 4 * pods * each: pods, pods * each: pods / 2, 1: 0} {
		o, own := NewObjects(budget), newOwner(pods)
		for i := range pods {
			k := objectKey{own, fmt.Sprintf("ns/%03d", i)}
			o.apply(own, []Change{{Key: k.key, New: value.Object, Seq: uint64(i + 1), value: value, isFirst: true}}, pods)
			if o.add(k, "read before", 0, 1, uint64(i), false); k.item() != nil && k.item().seq == 0 {
				t.Fatal("an object that was read before the list is kept")
			}
		}
		for i, key := range slices.Sorted(slices.Values(o.keys(own))) {
			if key != fmt.Sprintf("ns/%03d", i) {
				t.Errorf("budget %d: number %d is %s", budget, i, key)
			}
		}
		if n := len(own.items); n != want {
			t.Errorf("budget %d: %d are in memory, expected %d", budget, n, want)
		}
	}
}

// TestTheOldObjectIsTheOneThatWasThere, where it is read beside the new one.
func TestTheOldObjectIsTheOneThatWasThere(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	ix := newIndexer(t, db, nil, 1)
	random := testsupport.Rand(t)
	write := func(pod *corev1.Pod, keepOld bool) (old any, stored []byte) {
		t.Helper()
		w := ix.Writer()
		defer w.Close()
		if keepOld {
			w.KeepOldRecords(10)
		}
		c := w.Set("ns/pod", encoded(t, "ns/pod", pod), true)
		old, stored = c.Old, c.OldRecord
		if err := w.Commit(nil); err != nil {
			t.Fatal(err)
		}
		return old, stored
	}
	before := newPod("pod", "0")
	before.Spec.Containers = []corev1.Container{{Name: "one"}, {Name: "two"}}
	write(before.DeepCopy(), false)
	for i := range 200 {
		onDisk, keepOld := random.Intn(4) > 0, random.Intn(2) > 0
		if onDisk { // Else it is still in memory.
			if err := db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		now := before.DeepCopy()
		now.ResourceVersion = fmt.Sprint(i + 1)
		switch random.Intn(5) {
		case 0:
			now.Labels = map[string]string{"label": now.ResourceVersion}
		case 1:
			now.Spec.Containers[random.Intn(len(now.Spec.Containers))].Image = now.ResourceVersion
		case 2:
			now.Spec.Containers = append(now.Spec.Containers, corev1.Container{Name: now.ResourceVersion})
		case 3:
			now.Spec.Containers = now.Spec.Containers[:1]
		case 4:
			now.Status.Conditions = []corev1.PodCondition{{Message: now.ResourceVersion}}
		}
		handed := now.DeepCopy()
		old, stored := write(handed, keepOld)
		if !apiequality.Semantic.DeepEqual(before, old) || !apiequality.Semantic.DeepEqual(now, handed) {
			t.Fatalf("update %d: the old object is %v, expected %v; the new one %v, expected %v", i, old, before, handed, now)
		}
		if (stored != nil) != keepOld {
			t.Fatalf("update %d: on disk %t, to be kept %t: its record is %q", i, onDisk, keepOld, stored)
		}
		if stored != nil {
			if again := reread(t, stored); !apiequality.Semantic.DeepEqual(before, again) {
				t.Fatalf("update %d: the old record is %v, expected %v", i, again, before)
			}
		}
		before = now
	}
}

// reread returns the object of a record.
func reread(t *testing.T, b []byte) any {
	t.Helper()
	r, err := record.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := r.Decode(func() any { return &corev1.Pod{} })
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// TestNoBallastUnderAMemoryLimit, which would count it.
func TestNoBallastUnderAMemoryLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 40))
	o := NewObjects(0)
	o.Ballast(newOwner(1))
	if n := len(o.ballast); n != 0 {
		t.Errorf("%d bytes", n)
	}
}

// TestNeighboursShareWhatIsAlike: what a chunk has is decoded beside the object before, and what
// stays in memory is not.
func TestNeighboursShareWhatIsAlike(t *testing.T) {
	const pods = 3 * minParallel
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	ix := newIndexer(t, db, nil, 0)
	for i := range pods {
		pod := withValues(newPod(fmt.Sprintf("pod-%03d", i), "1"), "a")
		pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "image"}}
		if err := ix.Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	ix = newIndexer(t, db, nil, 0)
	c, err := ix.Chunk("", false)
	if err != nil {
		t.Fatal(err)
	}
	listed := ix.List()
	if diff := cmp.Diff(sorted(listed), sorted(c.Objects)); diff != "" || len(listed) != pods {
		t.Fatalf("%d objects; -listed +in the chunk:\n%.2000s", len(listed), diff)
	}
	distinct := func(objects []any) int {
		containers := map[*corev1.Container]bool{}
		for _, obj := range objects {
			containers[&obj.(*corev1.Pod).Spec.Containers[0]] = true
		}
		return len(containers)
	}
	if shared, listed := distinct(c.Objects), distinct(listed); shared > runtime.GOMAXPROCS(0) || listed != pods {
		t.Errorf("%d containers in a chunk of %d Pods, %d in a list", shared, pods, listed)
	}
}
