package queue

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

func TestMain(m *testing.M) { testsupport.Main(m, nil) }

const testSpace = "pods"

func newPodObject() any { return new(corev1.Pod) }

// newLog returns the log of Pods in a DB. Nothing in it may be unreadable.
func newLog(t testing.TB, db *persist.DB, o Options) *Log {
	t.Helper()
	o.DB, o.Space, o.NewObject = db, testSpace, newPodObject
	if o.OnCorrupt == nil {
		o.OnCorrupt = func(err error) { t.Errorf("corrupt: %v", err) }
	}
	q, err := NewLog(o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// newFIFO is newLog for a queue.
func newFIFO(t testing.TB, db *persist.DB, o DeltaFIFOOptions) *DeltaFIFO {
	t.Helper()
	o.DB, o.Space, o.NewObject = db, testSpace, newPodObject
	o.OnCorrupt = func(err error) { t.Errorf("corrupt: %v", err) }
	q, err := NewDeltaFIFO(o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// fifoOf is a queue of what a log has.
func fifoOf(t testing.TB, log *Log) *DeltaFIFO {
	t.Helper()
	return newFIFO(t, log.db, DeltaFIFOOptions{})
}

func newPod(name, rv string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: rv}}
}

// numbered returns a delta that tells its number by its object, too. Every third
// is a deletion.
func numbered(seq uint64) Delta {
	pod := newPod(fmt.Sprintf("pod-%d", seq%7), fmt.Sprint(seq))
	return Delta{Seq: seq, Type: typeOf(seq), Key: "ns/" + pod.Name, New: pod, SizeBytes: sizeOf(pod)}
}

// sizeOf returns the length of an object's record.
func sizeOf(obj any) int {
	value, err := record.Encode(obj)
	if err != nil {
		panic(err)
	}
	return value.SizeBytes()
}

func typeOf(seq uint64) cache.DeltaType {
	if seq%3 == 0 {
		return cache.Deleted
	}
	return cache.Added
}

// publish adds deltas as the informer does: in one batch.
func publish(t testing.TB, q *Log, ds ...Delta) {
	t.Helper()
	if _, err := q.db.Update(func(b *persist.Batch) { q.Append(b, ds) }); err != nil {
		t.Fatal(err)
	}
}

func publishUpTo(t testing.TB, q *Log, from, to uint64) {
	t.Helper()
	for seq := from; seq <= to; seq++ {
		publish(t, q, numbered(seq))
	}
}

func flush(t testing.TB, q *Log) {
	t.Helper()
	if err := q.db.Flush(); err != nil {
		t.Fatal(err)
	}
}

// next takes what there is for a consumer, up to n deltas, and acknowledges it.
func next(t testing.TB, c *Consumer, n int) (seqs []uint64) {
	t.Helper()
	for len(seqs) < n {
		ds, err := c.ready()
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) == 0 {
			break
		}
		ds = ds[:min(len(ds), n-len(seqs))]
		for i := range ds {
			checkNumbered(t, &ds[i])
			seqs = append(seqs, ds[i].Seq)
		}
		acknowledge(t, c, ds)
	}
	return seqs
}

func acknowledge(t testing.TB, c *Consumer, ds []Delta) {
	t.Helper()
	if err := c.Acknowledge(ds); err != nil {
		t.Fatal(err)
	}
}

// listed has a consumer pass an initial list of which nobody looks at the objects.
func listed(t testing.TB, c *Consumer) *Consumer {
	t.Helper()
	if !c.StartsOver() {
		t.Fatal("it does not start over")
	}
	if c.durable {
		flush(t, c.q)
	}
	if _, err := c.BeginList(); err != nil {
		t.Fatal(err)
	}
	if err := c.EndList(); err != nil {
		t.Fatal(err)
	}
	return c
}

// durable returns the consumer of a name, which is new or not.
func durable(t testing.TB, q *Log, name string, isNew bool) *Consumer {
	t.Helper()
	c, err := q.Durable(Handlers, name, "")
	if err != nil {
		t.Fatal(err)
	}
	if c.StartsOver() != isNew {
		t.Fatalf("%s starts over: %v", name, !isNew)
	}
	if isNew {
		listed(t, c)
	}
	return c
}

func remove(t testing.TB, c *Consumer) {
	t.Helper()
	if err := c.Remove(); err != nil {
		t.Fatal(err)
	}
}

func checkNumbered(t testing.TB, d *Delta) {
	t.Helper()
	pod, ok := d.New.(*corev1.Pod)
	if !ok || pod.ResourceVersion != fmt.Sprint(d.Seq) || d.Key != "ns/"+pod.Name || d.Type != typeOf(d.Seq) {
		t.Errorf("delta %d is %+v", d.Seq, d)
	}
}

// onDisk are the numbers of the deltas that the DB has.
func onDisk(t testing.TB, db *persist.DB, durable bool) (numbers []uint64) {
	t.Helper()
	take := db.Snapshot
	if durable {
		take = db.DurableSnapshot
	}
	s, err := take(testSpace)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.Scan(DeltasBucket, "", func(it *persist.Item) (bool, error) {
		number, _, err := ParseDeltaKey(it.Key)
		numbers = append(numbers, number)
		return true, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return numbers
}

func upTo(from, to uint64) (seqs []uint64) {
	for ; from <= to; from++ {
		seqs = append(seqs, from)
	}
	return seqs
}
