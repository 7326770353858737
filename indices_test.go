package warmwatch_test

import (
	"slices"
	"testing"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
)

// indexed sets an index, and its version.
func indexed(version string, f cache.IndexFunc) setup {
	return func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
		o.Indexers, o.IndexVersion = cache.Indexers{"i": f}, version
	}
}

func byName(obj any) ([]string, error) { return []string{accessor(obj).GetName()}, nil }

func TestAnotherIndexVersionRebuildsTheIndicesAndResumes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a", "x"), configMap("b", "x"))
		path := filled(t, f, indexed("1", byContent))
		for _, c := range []struct {
			version, value string
			index          cache.IndexFunc
			want           []string
		}{
			{"1", "x", byContent, []string{"ns/a", "ns/b"}},
			{"2", "a", byName, []string{"ns/a"}},
			{"3", "x", byContent, []string{"ns/a", "ns/b"}},
		} {
			p := launch(t, path, f, indexed(c.version, c.index)).run()
			keys, err := p.informer.GetIndexer().IndexKeys("i", c.value)
			if err != nil || !slices.Equal(keys, c.want) {
				t.Errorf("version %s: %q, %v", c.version, keys, err)
			}
			p.expectRequests(f, "LIST rv=2 limit=1", "WATCH rv=2")
			p.stop()
		}
	})
}

// TestAnotherIndexFunctionOfTheSameVersionIsStaleUntilItIsCompared with the objects.
func TestAnotherIndexFunctionOfTheSameVersionIsStaleUntilItIsCompared(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a", "x"), configMap("b", "x"))
		path := filled(t, f, indexed("1", byContent))
		p := launch(t, path, f, indexed("1", byName)).run()
		for _, want := range [][]string{nil, {"ns/a"}} {
			keys, err := p.informer.GetIndexer().IndexKeys("i", "a")
			if err != nil || !slices.Equal(keys, want) {
				t.Errorf("the index has %q, %v, expected %q", keys, err, want)
			}
			settle()
		}
	})
}
