package process

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// ExpectStore compares the store with the source (A5).
func ExpectStore(t *testing.T, informer cache.SharedInformer, f *source.Source) {
	t.Helper()
	if diff := cmp.Diff(f.Contents(), source.Versions(informer.GetStore().List())); diff != "" {
		t.Errorf("the store does not equal the source (-source +store):\n%s", diff)
	}
}

// Undelivered returns how many deltas wait for the handler that is most behind.
func Undelivered(st warmwatch.InformerStatus) (n int) {
	for _, h := range st.Handlers {
		n = max(n, h.Undelivered)
	}
	return n
}

// ExpectEqual compares the whole content, and the index if there is one, with the
// source.
func ExpectEqual(t *testing.T, informer cache.SharedIndexInformer, f *source.Source) {
	t.Helper()
	ExpectStore(t, informer, f)
	index := map[string][]string{}
	for key, obj := range f.Objects {
		got, exists, err := informer.GetStore().GetByKey(key)
		if err != nil || !exists || !apiequality.Semantic.DeepEqual(got, obj) {
			t.Errorf("%s differs: %v, %v", key, exists, err)
		}
		value := obj.(*corev1.ConfigMap).Data["v"]
		index[value] = append(index[value], key)
	}
	if informer.GetIndexer().GetIndexers()["content"] == nil {
		return
	}
	values := informer.GetIndexer().ListIndexFuncValues("content")
	for _, value := range values {
		got, err := informer.GetIndexer().IndexKeys("content", value)
		slices.Sort(got)
		slices.Sort(index[value])
		if !slices.Equal(got, index[value]) {
			t.Errorf("index value %.20q has %q, expected %q (%v)", value, got, index[value], err)
		}
	}
	if len(values) != len(index) {
		t.Errorf("%d indexed values, expected %d", len(values), len(index))
	}
}

// JoinWhileObjectsChange has handlers join an informer while many objects change
// at full speed.
func JoinWhileObjectsChange(t *testing.T, f *source.Source, informer cache.SharedInformer, join func(cache.ResourceEventHandler) error) {
	objects, changes, handlers := testsupport.Rounds(600, 200), testsupport.Rounds(2400, 800), testsupport.Rounds(16, 8)
	name := func(i int) string { return fmt.Sprintf("o%04d", i) }
	for i := range objects {
		f.Put(source.ConfigMap(name(i)))
	}
	bubble.Start(t, informer)
	var wg sync.WaitGroup
	wg.Go(func() {
		random := rand.New(rand.NewPCG(1, 2))
		there := map[string]bool{}
		for range changes {
			n := name(random.IntN(2 * objects))
			if there[n] && random.IntN(3) == 0 {
				f.Remove(n)
				there[n] = false
			} else {
				f.Put(source.ConfigMap(n))
				there[n] = true
			}
		}
	})
	chains := make([]*recorder.Chain, handlers)
	wg.Go(func() {
		for i := range chains {
			chains[i] = recorder.NewChain(t, fmt.Sprint(i))
			if err := join(chains[i]); err != nil {
				t.Error(err)
			}
			runtime.Gosched()
		}
	})
	wg.Wait()
	bubble.Settle()
	for _, c := range chains {
		if diff := cmp.Diff(f.Contents(), c.Versions()); diff != "" {
			t.Errorf("handler %s believes in something else (-source +handler):\n%s", c.Name, diff)
		}
	}
	ExpectStore(t, informer, f)
}
