package warmwatch_test

import (
	"slices"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/testsupport"
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
			p.expectRequests(f, "LIST limit=1", "WATCH rv=2")
			p.stop()
		}
	})
}

// TestWhileIndicesAreRebuiltTheFileHasNoIndexVersion: a program that is killed then may be rolled back to the version
// before.
func TestWhileIndicesAreRebuiltTheFileHasNoIndexVersion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a", "x"))
		path := filled(t, f, indexed("1", byContent))
		during := ""
		p := launch(t, path, f, indexed("2", func(obj any) ([]string, error) {
			if during == "" {
				time.Sleep(10 * time.Second) // What was stored before is committed.
				during = testsupport.Path(t)
				testsupport.CopyFile(t, path, during)
			}
			return byName(obj)
		})).run()
		settle()
		p.stop()
		for path, want := range map[string]string{during: "", path: "2 i"} {
			inFile(t, path, func(tx *bolt.Tx) error {
				return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
					raw := payload(space, "checkpoint", "resume")
					if raw == nil {
						return nil
					}
					found, err := checkpoint.Parse(raw, "")
					if found.IndexVersion != want {
						t.Errorf("index version %q, expected %q", found.IndexVersion, want)
					}
					return err
				})
			})
		}
	})
}
