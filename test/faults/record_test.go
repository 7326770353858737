package faults_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/cachefile"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// TestDamagedDeltasAreLoggedOnce for each handler that gets everything again.
func TestDamagedDeltasAreLoggedOnce(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f, path := source.New(t, source.ConfigMap("a")), testsupport.Path(t)
		p := process.Launch(t, path, f, nil)
		d := process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		p.Stop()
		d.Take()
		p = process.Launch(t, path, f, nil).Run() // Without the handler.
		for i := range 50 {
			f.Put(source.ConfigMap(fmt.Sprint("n", i)))
		}
		bubble.Settle()
		p.Stop()
		flipAll(t, path, "deltas", "")
		logger, lines := testsupport.LoggerOf("Could not read")
		f.SetDown(source.ErrUnreachable) // A list would end before all are read.
		p = process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
		d = process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		if got := d.Take(); len(got) != 51 {
			t.Errorf("delivered %q, expected all objects", got)
		}
		if len(lines()) != 2 {
			t.Errorf("logged %q, expected that one cannot be read, and that a handler gets everything", lines())
		}
	})
}

// TestDamagedRecordsAreLoggedOnce, however many there are, and however often they are read.
func TestDamagedRecordsAreLoggedOnce(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t)
		for i := range 100 {
			f.Put(source.ConfigMap(fmt.Sprint("n", i), "x"))
		}
		path := process.Filled(t, f, process.ByContent)
		flipAll(t, path, "objects", "kns/")
		logger, lines := testsupport.LoggerOf("read")
		f.SetDown(source.ErrUnreachable)
		p := process.Launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
			process.ByContent(o, io)
			o.Logger = logger
		})
		recorder.Add(t, p.Informer)
		p.Run()
		bubble.Settle()
		for range 5 {
			p.Informer.GetStore().List()
		}
		f.SetDown(nil)
		bubble.Settle()
		process.ExpectEqual(t, p.Informer, f)
		if lines := lines(); len(lines) != 2 || !strings.Contains(lines[1], `"code"="Recovered" "cause"="Unreadable"`) {
			t.Errorf("logged %q, expected what was found, and that it is repaired", lines)
		}
	})
}

func TestARecordWithABadChecksumIsNotServedAndComesBack(t *testing.T) { // A7
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "x"), source.ConfigMap("c", "x"))
		path := process.Filled(t, f, process.ByContent)
		cachefile.ChangeValue(t, path, "objects", "ns/b", func(v []byte) { v[len(v)/2] ^= 1 })
		f.SetDown(source.ErrUnreachable)
		p := process.Launch(t, path, f, process.ByContent)
		r, registration := recorder.Add(t, p.Informer)
		p.Run()
		bubble.Settle()
		r.Expect(t) // Its initial list waits for the relist.
		if !p.Informer.HasSynced() || registration.HasSynced() {
			t.Error("not synced from disk, or the handler is")
		}
		if obj, exists, err := p.Informer.GetStore().GetByKey("ns/b"); err == nil || exists {
			t.Errorf("GetByKey of what cannot be read: %v, %v", obj, exists)
		}
		if got := source.Names(p.Informer.GetStore().List(), nil); !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("List: %q", got)
		}
		if st := p.Informer.Status(); st.Err == nil || !strings.Contains(st.Err.Error(), "ns/b") {
			t.Errorf("status while it cannot be read: %+v", st)
		}
		f.SetDown(nil)
		bubble.Settle()
		bubble.Advance(time.Second)
		r.Expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
		process.ExpectEqual(t, p.Informer, f)
		if st := p.Informer.Status(); st.Err != nil || st.Relists != 1 {
			t.Errorf("status after the relist: %+v", st)
		}
	})
}

// TestAReadThatMeetsDamageWaitsForTheRelist, so that it has all there is, while the server is heard. If no list comes
// to its end, reads that can say so fail after 10 s, and List leaves out what cannot be read once the server is not
// heard (A7).
func TestAReadThatMeetsDamageWaitsForTheRelist(t *testing.T) {
	keysByIndex := func(ix cache.Indexer) ([]string, error) { return ix.IndexKeys("content", "x") }
	byIndex := func(ix cache.Indexer) ([]string, error) {
		objects, err := ix.ByIndex("content", "x")
		return source.Names(objects, nil), err
	}
	list := func(ix cache.Indexer) ([]string, error) { return source.Names(ix.List(), nil), nil }
	get := func(ix cache.Indexer) ([]string, error) {
		obj, exists, err := ix.GetByKey("ns/b")
		if !exists {
			return nil, err
		}
		return []string{source.Meta(obj).GetName()}, err
	}
	for name, c := range map[string]struct {
		bucket string
		read   func(cache.Indexer) ([]string, error)
		want   []string
		fails  bool // Else it has less.
	}{
		"List":      {"objects", list, []string{"a", "b", "c"}, false},
		"GetByKey":  {"objects", get, []string{"b"}, true},
		"ByIndex":   {"objects", byIndex, []string{"a", "b", "c"}, true},
		"IndexKeys": {"index", keysByIndex, []string{"ns/a", "ns/b", "ns/c"}, true},
	} {
		for _, lists := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/lists=%t", name, lists), func(t *testing.T) {
				bubble.Run(t, func(t *testing.T) {
					f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "x"), source.ConfigMap("c", "x"))
					path := process.Filled(t, f, process.ByContent)
					key := "ns/b"
					if c.bucket == "index" {
						key = "\acontent\x02vxns/b"
					}
					cachefile.ChangeValue(t, path, c.bucket, key, func(v []byte) { v[len(v)/2] ^= 1 })
					f.With(func() {
						f.OnList = func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
							if lists || o.Limit == 1 {
								return nil, nil
							}
							return nil, source.ErrUnreachable
						}
					})
					p := process.Launch(t, path, f, process.ByContent)
					p.Damaged = true
					p.Run()
					bubble.Settle()
					begin := time.Now()
					got, err := c.read(p.Informer.GetIndexer())
					slices.Sort(got)
					waited := time.Since(begin)
					if lists && (err != nil || !slices.Equal(got, c.want)) {
						t.Errorf("%q, %v, expected %q", got, err, c.want)
					}
					if !lists && (waited > time.Minute || c.fails && (err == nil || waited < 9*time.Second) || len(got) >= len(c.want)) {
						t.Errorf("%q, %v after %v, although nothing is listed", got, err, waited)
					}
				})
			})
		}
	}
}

func TestADamagedKeyIsFound(t *testing.T) {
	for _, bucket := range []string{"objects", "index"} {
		t.Run(bucket+": by itself, when it hides itself", func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) { damagedKey(t, bucket, 0x40, false) })
		})
		t.Run(bucket+": by a reader, when it hides what is behind it", func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) { damagedKey(t, bucket, 0x04, true) })
		})
	}
	// Without it the store would seem to be empty.
	t.Run("store: at the start", func(t *testing.T) {
		bubble.Run(t, func(t *testing.T) { damagedKey(t, "store", 0x40, true) })
	})
}

func damagedKey(t *testing.T, bucket string, flip byte, behind bool) {
	f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "y"), source.ConfigMap("c", "z"))
	path := process.Filled(t, f, process.ByContent)
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Both kinds of keys begin with what readers look for.
	if err := db.Update(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
			b := space.Bucket([]byte(bucket))
			if b == nil {
				return nil
			}
			k, v := b.Cursor().First()
			k, v = slices.Clone(k), slices.Clone(v)
			if err := b.Delete(k); err != nil {
				return err
			}
			k[2] ^= flip
			return b.Put(k, v)
		})
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	p := process.Launch(t, path, f, process.ByContent).Run()
	if behind {
		p.Informer.GetIndexer().ListIndexFuncValues("content")
		p.Informer.GetIndexer().List()
		bubble.Advance(5 * time.Second) // Enough for a relist; nothing else has read it yet.
	} else {
		bubble.Settle()
	}
	process.ExpectEqual(t, p.Informer, f)
	relists := 1
	if bucket == "index" { // It is made anew from the objects.
		relists = 0
	}
	if st := p.Informer.Status(); st.Relists != relists {
		t.Errorf("status %+v", st)
	}
}

func TestABadCheckpointOrCursorMeansARelist(t *testing.T) {
	for _, bad := range [][2]string{{"checkpoint", "resume"}, {"store", "state"}, {"handlers", "handler/d"}} {
		t.Run(bad[0]+"/"+bad[1], func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "x"))
				path := testsupport.Path(t)
				p := process.Launch(t, path, f, process.ByContent)
				process.AddBoth(t, p)
				p.Run()
				bubble.Settle()
				p.Stop()
				cachefile.ChangeValue(t, path, bad[0], bad[1], func(v []byte) { v[len(v)-1] ^= 1 })
				f.Put(source.ConfigMap("a", "y"))
				f.Remove("b")
				p = process.Launch(t, path, f, process.ByContent)
				_, d := process.AddBoth(t, p)
				p.Run()
				bubble.Settle()
				process.ExpectEqual(t, p.Informer, f)
				if st := p.Informer.Status(); st.Err != nil || st.Relists != 1 {
					t.Errorf("status %+v", st)
				}
				f.Put(source.ConfigMap("c", "z"))
				bubble.Settle()
				if got := d.Take(); len(got) == 0 || got[len(got)-1] != "add ns/c@5" {
					t.Errorf("the durable handler got %q", got)
				}
			})
		})
	}
}
