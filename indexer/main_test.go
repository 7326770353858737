package indexer

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// newIndexer returns an Indexer of Pods. The test fails if the Indexer cannot read
// something.
func newIndexer(t testing.TB, db *persist.DB, indexers cache.Indexers, budget int64) *Indexer {
	t.Helper()
	ix, err := New(Options{
		DB: db, Space: testSpace, Indexers: indexers, Objects: NewObjects(budget),
		NewObject: func() any { return new(corev1.Pod) },
		OnCorrupt: func(err error) { t.Errorf("corrupt: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return ix
}

func newPod(name, rv string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, ResourceVersion: rv, UID: "u",
		Annotations: map[string]string{},
	}}
}

// withValues gives a Pod the values that byValues finds.
func withValues(p *corev1.Pod, values ...string) *corev1.Pod {
	for i, v := range values {
		p.Annotations[fmt.Sprintf("value-%d", i)] = hex.EncodeToString([]byte(v))
	}
	return p
}

// byValues may find none, one, several, or the same value several times, and
// values of any bytes.
func byValues(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("a %T", obj)
	}
	var values []string
	for k, v := range p.Annotations {
		if strings.HasPrefix(k, "value-") {
			b, err := hex.DecodeString(v)
			if err != nil {
				return nil, err
			}
			values = append(values, string(b))
		}
	}
	return values, nil
}

func byNode(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, errors.New("no Pod")
	}
	return []string{p.Spec.NodeName}, nil
}

// entriesOf are the index entries in the DB.
func entriesOf(t testing.TB, ix *Indexer) []string {
	t.Helper()
	s, err := ix.db.Snapshot(ix.space)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var entries []string
	err = s.Scan(IndexBucket, "", func(it *persist.Item) (bool, error) {
		v, err := it.Payload()
		if err != nil {
			return false, err
		}
		entries = append(entries, fmt.Sprintf("%q=%q", it.Key, v))
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// checkRebuild checks A5: a rebuild from the objects makes the entries that exist.
func checkRebuild(t testing.TB, ix *Indexer) {
	t.Helper()
	before, count := entriesOf(t, ix), ix.Len()
	if err := ix.RebuildIndices(); err != nil {
		t.Fatal(err)
	}
	if after := entriesOf(t, ix); !slices.Equal(before, after) {
		t.Errorf("%d index entries, after a rebuild %d:\n%v\n%v", len(before), len(after), before, after)
	}
	if got := ix.Len(); got != count {
		t.Errorf("%d objects, after a rebuild %d", count, got)
	}
}

// sorted orders Pods by their names.
func sorted(objs []any) []any {
	slices.SortFunc(objs, func(a, b any) int {
		p, q := a.(*corev1.Pod), b.(*corev1.Pod)
		return cmp.Or(cmp.Compare(p.Namespace, q.Namespace), cmp.Compare(p.Name, q.Name))
	})
	return objs
}

func names(objs []any) []string {
	out := []string{}
	for _, o := range sorted(objs) {
		out = append(out, o.(*corev1.Pod).Name)
	}
	return out
}

func encoded(t testing.TB, key string, obj any) *record.Object {
	t.Helper()
	value, err := Encode(key, obj)
	if err != nil {
		t.Fatal(err)
	}
	return value
}
