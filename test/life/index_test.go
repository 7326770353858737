package life_test

import (
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/cachefile"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// indexed sets an index, and its version.
func indexed(version string, f cache.IndexFunc) process.Setup {
	return func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
		o.Indexers, o.IndexVersion = cache.Indexers{"i": f}, version
	}
}

func byName(obj any) ([]string, error) { return []string{source.Meta(obj).GetName()}, nil }

func TestAnotherIndexVersionRebuildsTheIndicesAndResumes(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "x"))
		path := process.Filled(t, f, indexed("1", source.ByContent))
		for _, c := range []struct {
			version, value string
			index          cache.IndexFunc
			want           []string
		}{
			{"1", "x", source.ByContent, []string{"ns/a", "ns/b"}},
			{"2", "a", byName, []string{"ns/a"}},
			{"3", "x", source.ByContent, []string{"ns/a", "ns/b"}},
		} {
			p := process.Launch(t, path, f, indexed(c.version, c.index)).Run()
			keys, err := p.Informer.GetIndexer().IndexKeys("i", c.value)
			if err != nil || !slices.Equal(keys, c.want) {
				t.Errorf("version %s: %q, %v", c.version, keys, err)
			}
			p.ExpectRequests(f, "LIST limit=1", "WATCH rv=2")
			p.Stop()
		}
	})
}

// TestWhileIndicesAreRebuiltTheFileHasNoIndexVersion: a program that is killed then may be rolled back to the version
// before.
func TestWhileIndicesAreRebuiltTheFileHasNoIndexVersion(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a", "x"))
		path := process.Filled(t, f, indexed("1", source.ByContent))
		during := ""
		p := process.Launch(t, path, f, indexed("2", func(obj any) ([]string, error) {
			if during == "" {
				time.Sleep(10 * time.Second) // What was stored before is committed.
				during = testsupport.Path(t)
				testsupport.CopyFile(t, path, during)
			}
			return byName(obj)
		})).Run()
		bubble.Settle()
		p.Stop()
		for path, want := range map[string]string{during: "", path: "2 i"} {
			cachefile.View(t, path, func(tx *bolt.Tx) error {
				return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
					raw := cachefile.Payload(space, "checkpoint", "resume")
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
