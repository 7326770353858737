package warmwatch

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// TestTheLaterStateOfADeletionStays, in whatever order they come (D4), also where a reconcile has begun before the second one comes.
func TestTheLaterStateOfADeletionStays(t *testing.T) {
	meta := func(version string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "u", ResourceVersion: version}
	}
	configMap := func(version string) runtime.Object { return &corev1.ConfigMap{ObjectMeta: meta(version)} }
	name := cache.ObjectName{Namespace: "ns", Name: "b"}
	add := func(d *deletions, obj runtime.Object) { d.add(name, obj, true) }
	lose := func(d *deletions, obj runtime.Object) { d.add(name, obj, false) }
	type step func(*deletions, runtime.Object)
	for what, c := range map[string]struct {
		first, second  step
		known, further runtime.Object
		want           string
	}{
		"the server was put back":               {add, add, configMap("4"), configMap("2"), "2"},
		"a handler is told the later one later": {add, add, configMap("2"), configMap("4"), "4"},
		"a later one is lost":                   {add, lose, configMap("2"), configMap("4"), "4"},
		"an earlier one is lost":                {add, lose, configMap("4"), configMap("2"), "4"},
	} {
		t.Run(what, func(t *testing.T) {
			db, err := persist.OpenMemory(persist.Options{Logger: &testsupport.Quiet})
			if err != nil {
				t.Fatal(err)
			}
			d, err := openDeletions(db, "space", "r", newConfigMap)
			if err != nil {
				t.Fatal(err)
			}
			c.first(d, c.known)
			begun := d.read(name, testsupport.Quiet)
			c.second(d, c.further)
			d.remove(name, begun)
			found := d.read(name, testsupport.Quiet)
			if len(found.objects) != 1 || found.objects[0].(*corev1.ConfigMap).ResourceVersion != c.want {
				t.Errorf("found %v, expected version %s", found.objects, c.want)
			}
			d.close()
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEveryCommitThatHasADeletionsAcknowledgementHasTheObject: a reconciler's handler may be told, and acknowledge,
// also while a commit asks one hook after the other what it has (D4).
func TestEveryCommitThatHasADeletionsAcknowledgementHasTheObject(t *testing.T) {
	path := testsupport.Path(t)
	db := testdb.Open(t, path, testdb.Manual)
	d, err := openDeletions(db, "space", "r", newConfigMap)
	if err != nil {
		t.Fatal(err)
	}
	add := func(n int) {
		name := cache.ObjectName{Namespace: "ns", Name: fmt.Sprint(n)}
		d.add(name, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name.Name, UID: "u"}}, true)
	}
	for _, file := range testdb.AddDuringCommits(t, db, path, add, func() int { return len(d.keys()) }) {
		after := testdb.Open(t, file, testdb.Manual)
		next, err := openDeletions(after, "space", "r", newConfigMap)
		if err != nil {
			t.Fatal(err)
		}
		testdb.ExpectAcknowledged(t, after, len(next.keys()))
	}
}

func newConfigMap() any { return &corev1.ConfigMap{} }
