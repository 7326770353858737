package life_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// TestOptionsOfTheCacheAreThoseOfInformersThatDoNotSetThem: the first life has version 1 of
// both functions.
func TestOptionsOfTheCacheAreThoseOfInformersThatDoNotSetThem(t *testing.T) {
	resumed, listed := []string{"LIST limit=1", "WATCH rv=2"}, []string{"LIST rv=2", "WATCH rv=2"}
	for _, c := range []struct {
		name     string
		second   process.Setup
		requests []string
		indexed  int // Calls of the index function when the second life resumes.
	}{
		{name: "the same", requests: resumed},
		{
			name:     "another TransformVersion",
			second:   func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.TransformVersion = "2" },
			requests: listed,
		},
		{
			name: "another TransformVersion, and the informer has its own",
			second: func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
				o.TransformVersion, io.TransformVersion = "2", "1"
			},
			requests: resumed,
		},
		{
			name:     "another IndexVersion",
			second:   func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.IndexVersion = "2" },
			requests: resumed, indexed: 2,
		},
		{
			name:     "NeverResume",
			second:   func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.NeverResume = true },
			requests: listed,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f, path := source.New(t, source.ConfigMap("a"), source.ConfigMap("b")), testsupport.Path(t)
				var indexed atomic.Int32 // Later they are checked.
				atStart := 0
				live := func(change process.Setup) {
					indexed.Store(0)
					p := process.Launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
						o.TransformVersion, o.IndexVersion = "1", "1"
						io.Indexers = cache.Indexers{"i": func(any) ([]string, error) {
							indexed.Add(1)
							return []string{"x"}, nil
						}}
						if change != nil {
							change(o, io)
						}
					})
					if err := p.Informer.SetTransform(func(obj any) (any, error) { return obj, nil }); err != nil {
						t.Fatal(err)
					}
					p.Run()
					atStart = int(indexed.Load())
					bubble.Settle()
					p.Stop()
				}
				live(nil)
				f.TakeRequests()
				live(c.second)
				if diff := cmp.Diff(c.requests, f.TakeRequestsInOrder()); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
				if !slices.Equal(c.requests, listed) && atStart != c.indexed {
					t.Errorf("the index function was called %d times at the start, expected %d", atStart, c.indexed)
				}
			})
		})
	}
}

// written returns how many bytes the process has written to files and sockets.
func written(t *testing.T) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skip("this system does not count what a process writes")
	}
	if _, err := fmt.Sscanf(string(b[strings.Index(string(b), "wchar:"):]), "wchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAnIdleHourCostsManyInformersWhatItCostsOne: they get bookmarks, each at another time of a minute. A process that
// is killed then has a young checkpoint.
func TestAnIdleHourCostsManyInformersWhatItCostsOne(t *testing.T) {
	idle := func(t *testing.T, n int) (bytes int64) {
		bubble.Run(t, func(t *testing.T) {
			path := testsupport.Path(t)
			run := func(t *testing.T, path string, sources []*source.Source) (stop func()) {
				c := open(t, path)
				var stops []func()
				for i, f := range sources {
					s, err := c.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps, Name: fmt.Sprint(i)})
					if err != nil {
						t.Fatal(err)
					}
					stops = append(stops, bubble.Start(t, s))
				}
				bubble.Settle()
				return func() {
					for _, stop := range stops {
						stop()
					}
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				}
			}
			var sources []*source.Source
			for range n {
				sources = append(sources, source.New(t, source.ConfigMap("a")))
			}
			stop := run(t, path, sources)
			before := written(t)
			for range 60 {
				for _, f := range sources {
					f.Bookmark()
					bubble.Advance(time.Minute / time.Duration(n))
				}
			}
			bytes = written(t) - before
			killed := testsupport.Path(t)
			testsupport.CopyFile(t, path, killed)
			stop()
			for _, f := range sources {
				f.TakeRequests()
			}
			stop = run(t, killed, sources)
			for i, f := range sources {
				rv := int64(0)
				for _, r := range f.TakeRequests() {
					if _, err := fmt.Sscanf(r, "WATCH rv=%d", &rv); err == nil {
						break
					}
				}
				if rv < f.RV-2 {
					t.Errorf("informer %d resumes at %d, the server is at %d", i, rv, f.RV)
				}
			}
			stop()
		})
		return bytes
	}
	one, many := idle(t, 1), idle(t, 50)
	t.Logf("an idle hour: %d KiB for one informer, %d KiB for 50", one>>10, many>>10)
	if many > 2*one {
		t.Errorf("%d KiB for one informer, %d KiB for 50", one>>10, many>>10)
	}
}
