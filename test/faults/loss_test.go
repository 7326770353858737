package faults_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

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

// TestWhatTheFileLostIsDeletedFromMemoryToo: the file forgets an object that is
// in memory, and then the server deletes it.
func TestWhatTheFileLostIsDeletedFromMemoryToo(t *testing.T) {
	for _, test := range []struct {
		name    string
		damage  func(t *testing.T, path string)
		missed  bool // By a relist.
		indexed bool
	}{
		{"event", clearFile, false, false},
		{"event, indexed", clearFile, false, true},
		{"event, nothing noticed", loseLast, false, false},
		{"relist", clearFile, true, false},
		{"relist, indexed", clearFile, true, true},
		{"relist, nothing noticed", loseLast, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "y"), source.ConfigMap("c", "z"))
				path := testsupport.Path(t)
				p := process.Launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
					o.CommitInterval = time.Second
					if test.indexed {
						process.ByContent(o, io)
					}
				})
				p.Damaged = true
				r, _ := recorder.Add(t, p.Informer)
				p.Run()
				bubble.Advance(5 * time.Second)
				r.Expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
				test.damage(t, path)
				if test.missed {
					f.SetDown(source.ErrUnreachable)
					f.CloseWatches()
				}
				f.Remove("c") // Now the damage is found, too.
				bubble.Advance(20 * time.Second)
				f.SetDown(nil)
				bubble.Settle()
				process.ExpectEqual(t, p.Informer, f)
				if _, exists, err := p.Informer.GetStore().GetByKey("ns/c"); exists || err != nil {
					t.Errorf("it is still there, %v", err)
				}
				got := slices.DeleteFunc(r.Take(), func(event string) bool { return !strings.Contains(event, "ns/c") })
				if len(got) != 1 || got[0] != "delete ns/c@4" && got[0] != "lost ns/c@3" {
					t.Errorf("delivered %q", got)
				}
			})
		})
	}
}

// changeInPlace changes the bytes of a file that is in use.
func changeInPlace(t *testing.T, path string, change func([]byte)) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	change(b)
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

func clearFile(t *testing.T, path string) {
	t.Helper()
	changeInPlace(t, path, func(b []byte) { clear(b) })
}

// loseLast makes a leaf of three objects say that it has two: bbolt then sees no
// more.
func loseLast(t *testing.T, path string) {
	t.Helper()
	changeInPlace(t, path, func(b []byte) {
		header := []byte{2, 0, 3, 0, 0, 0, 0, 0} // Flags, count, overflow.
		found := false
		for at := 0; ; {
			i := bytes.Index(b[at:], []byte("kns/a"))
			if i < 0 {
				break
			}
			at += i + 1
			near := b[max(0, at-100):at]
			if count := bytes.LastIndex(near, header); count >= 0 {
				near[count+2] = 2
				found = true
			}
		}
		if !found {
			t.Fatal("there is no such leaf")
		}
	})
}

// TestAnEmptiedFileIsNotServedAsComplete: the file is lost under a running
// process, which ends before the server has sent everything again. A reader that
// takes absence for deletion must not see a part of the objects as the whole.
func TestAnEmptiedFileIsNotServedAsComplete(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "y"), source.ConfigMap("c", "z"))
		path := process.Filled(t, f, nil)
		p := process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.MemoryBudget = 1 })
		p.Damaged = true
		p.Run()
		bubble.Settle()
		clearFile(t, path)
		f.Put(source.ConfigMap("a", "new")) // The damage is found, and the file replaced.
		f.SetDown(source.ErrUnreachable)
		f.CloseWatches()
		bubble.Advance(20 * time.Second)
		after := testsupport.Path(t)
		testsupport.CopyFile(t, path, after)

		p = process.Launch(t, after, f, nil)
		r, _ := recorder.Add(t, p.Informer)
		p.Run()
		bubble.Settle()
		if p.Informer.HasSynced() {
			t.Errorf("synced, with %q", source.Names(p.Informer.GetStore().List(), nil))
		}
		r.Expect(t)
		f.SetDown(nil)
		bubble.Settle()
		process.ExpectEqual(t, p.Informer, f)
	})
}

// TestRebuildingIndicesFindsWhatIsMissing, because it counts again.
func TestRebuildingIndicesFindsWhatIsMissing(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "y"), source.ConfigMap("c", "z"))
		path := process.Filled(t, f, process.ByContent)
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Update(func(tx *bolt.Tx) error {
			return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
				if b := space.Bucket([]byte("objects")); b != nil {
					return b.Delete([]byte("kns/b"))
				}
				return nil
			})
		}); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		p := process.Launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
			process.ByContent(o, io)
			io.IndexVersion = "another"
		}).Run()
		bubble.Advance(5 * time.Second)
		process.ExpectEqual(t, p.Informer, f)
		if st := p.Informer.Status(); st.Relists != 1 || st.Err != nil {
			t.Errorf("status %+v", st)
		}
	})
}

func TestAnEventThatCouldNotBeAppliedIsTriedAgainByTheNextProcess(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		path := testsupport.Path(t)
		life := func(transform cache.TransformFunc) *recorder.Recorder {
			p := process.Launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "1" })
			if err := p.Informer.SetTransform(transform); err != nil {
				t.Fatal(err)
			}
			r, _ := recorder.Add(t, p.Informer)
			f.SetDown(source.ErrUnreachable) // The handler is notified of what is there first.
			p.Run()
			bubble.Settle()
			f.SetDown(nil)
			bubble.Settle()
			f.Put(source.ConfigMap("b"), source.ConfigMap("c"))
			bubble.Settle()
			p.Stop()
			return r
		}
		r := life(func(obj any) (any, error) {
			if source.Meta(obj).GetName() == "b" {
				return nil, process.ErrTransform
			}
			return obj, nil
		})
		r.Expect(t, "add ns/a@1 initial", "add ns/c@3")
		r = life(func(obj any) (any, error) { return obj, nil })
		r.Expect(t, "add ns/a@1 initial", "add ns/c@3 initial", "add ns/b@2", "update ns/b@2→4", "update ns/c@3→5")
	})
}

// flipAll damages each value of a bucket whose key begins like this.
func flipAll(t *testing.T, path, bucket, prefix string) {
	t.Helper()
	cachefile.ChangeBucket(t, path, bucket, func(b *bolt.Bucket) error {
		damaged := map[string][]byte{}
		err := b.ForEach(func(key, value []byte) error {
			if bytes.HasPrefix(key, []byte(prefix)) {
				damaged[string(key)] = bytes.Clone(value)
			}
			return nil
		})
		for key, value := range damaged {
			value[0] ^= 1
			err = errors.Join(err, b.Put([]byte(key), value))
		}
		return err
	})
}
