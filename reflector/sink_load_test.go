package reflector

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/persist"
)

// TestWhatTheNextProcessDecides (A3), after a complete list at 5 and what has happened since.
func TestWhatTheNextProcessDecides(t *testing.T) {
	want := checkpoint.Want{Identity: checkpoint.Identity{Resource: "configmaps"}}
	for _, c := range []struct {
		name  string
		since func(*Sink) error
		cause checkpoint.Cause
		serve bool
		at    string
	}{
		{"nothing", func(*Sink) error { return nil }, checkpoint.CauseResumed, true, "5"},
		{"an event", func(k *Sink) error { return k.Add(newConfigMap("b", "7")) }, checkpoint.CauseResumed, true, "7"},
		{"a bookmark", func(k *Sink) error { return k.Bookmark("8") }, checkpoint.CauseResumed, true, "8"},
		{"an event after a bookmark", func(k *Sink) error {
			_ = k.Bookmark("8")
			return k.Add(newConfigMap("b", "9"))
		}, checkpoint.CauseResumed, true, "9"},
		{"a list of an older server, after a bookmark", func(k *Sink) error {
			_ = k.Bookmark("8")
			_, err := relistOf(t, k, newConfigMap("a", "3")).finish("4")
			return err
		}, checkpoint.CauseResumed, true, "4"},
		{"a list without a version, then an event and a bookmark", func(k *Sink) error {
			_, _ = relistOf(t, k, newConfigMap("a", "3")).finish("")
			_ = k.Add(newConfigMap("b", "7"))
			return k.Bookmark("8")
		}, checkpoint.CauseNoVersion, true, ""},
		{"an object was refused, then a bookmark", func(k *Sink) error {
			k.checkType(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
			return k.Bookmark("8")
		}, checkpoint.CauseIncomplete, true, ""},
		{"a list that leaves out an object", func(k *Sink) error {
			r := relistOf(t, k, newConfigMap("a", "3"))
			_ = r.item(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
			_, err := r.finish("9")
			return err
		}, checkpoint.CauseIncomplete, true, ""},
		{"the cluster is known", func(k *Sink) error {
			_, err := k.SetCluster("one")
			return err
		}, checkpoint.CauseResumed, true, "5"},
		{"the server is of another cluster", func(k *Sink) error {
			_, _ = k.SetCluster("one")
			_, err := k.SetCluster("two")
			return err
		}, checkpoint.CauseIncomplete, false, ""},
		{"another cluster was listed", func(k *Sink) error {
			_, _ = k.SetCluster("one")
			_, _ = k.SetCluster("two")
			_, err := relistOf(t, k, newConfigMap("a", "3")).finish("4")
			return err
		}, checkpoint.CauseResumed, true, "4"},
		{"the program has changed the store by hand", func(k *Sink) error {
			return k.indexer.Update(newConfigMap("b", "200"))
		}, checkpoint.CauseResumed, true, "5"},
		{"the program has deleted from the store by hand, then an event", func(k *Sink) error {
			_ = k.indexer.Delete(newConfigMap("a", "200"))
			return k.Add(newConfigMap("b", "7"))
		}, checkpoint.CauseResumed, true, "7"},
		{"a list without a version and an event, then a start before its list", func(k *Sink) error {
			_, _ = relistOf(t, k, newConfigMap("a", "3")).finish("")
			_ = k.Add(newConfigMap("b", "7"))
			k.Stop()
			next := nextSink(k)
			_, _ = next.Load(want, nil)
			_, err := next.SetCluster("one")
			return err
		}, checkpoint.CauseNoVersion, true, ""},
		{"the checkpoint cannot be parsed", func(k *Sink) error {
			_, err := k.db.Update(func(b *persist.Batch) { b.Put(k.bucket, CheckpointKey, []byte("{")) })
			return err
		}, checkpoint.CauseDamaged, false, ""},
		{"nobody knows what is listed", func(k *Sink) error {
			k.Distrust()
			_, err := relistOf(t, k, newConfigMap("a", "3")).finish("9")
			return err
		}, checkpoint.CauseOtherIdentity, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newSink(t)
			if _, err := k.Load(want, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := relistOf(t, k, newConfigMap("a", "3")).finish("5"); err != nil {
				t.Fatal(err)
			}
			if err := c.since(k); err != nil {
				t.Fatal(err)
			}
			k.Stop()
			next := nextSink(k)
			got, err := next.Load(want, nil)
			if err != nil {
				t.Fatal(err)
			}
			if at := next.Checkpoint().ResourceVersion; got.Cause != c.cause || got.Serve != c.serve || at != c.at {
				t.Errorf("%+v, at %q; expected %s, serve %v, at %q", got, at, c.cause, c.serve, c.at)
			}
		})
	}
}

// nextSink returns the Sink of the next process.
func nextSink(k *Sink) *Sink {
	return NewSink(SinkOptions{
		DB: k.db, Space: k.space, Indexer: k.indexer, Log: k.queue, Informer: k.informer, Detector: cache.NewCacheMutationDetector("sink"),
		Logger: klog.Background(), Example: k.example, NewObject: k.newObject,
	})
}
