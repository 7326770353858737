package corrupt

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport/apiserver"
)

// The durable handlers of each informer.
const (
	present = "present" // Was notified of everything.
	half    = "half"    // Hung in the middle, until the process ended.
	absent  = "absent"  // Was removed in the middle.
	gone    = "gone"    // Likewise; returns in the second life only.
)

var durableNames = []string{present, half, absent, gone}

// image is a cache file and what is known about it.
type image struct {
	Name    string
	Seed    uint64 // Of the histories of the servers.
	File    []byte `json:"-"`
	Servers map[kind]serverImage
}

type serverImage struct {
	Version int
	// Beliefs of the durable handlers, by name and key: a resourceVersion.
	Beliefs map[string]map[string]int
}

// belief is a handler that believes what it gets.
type belief struct {
	mu        sync.Mutex
	known     map[string]int  // resourceVersion by key.
	delivered map[string]bool // Keys whose deletion was delivered.
	frozen    bool            // Hears nothing any more: the process is dead.
	gate      chan struct{}   // If set, no callback returns until it is closed.
	wrong     []string        // What a handler must not get.
}

func newBelief(known map[string]int) *belief {
	b := &belief{known: map[string]int{}, delivered: map[string]bool{}}
	maps.Copy(b.known, known)
	return b
}

func (b *belief) OnAdd(obj any, _ bool) { b.put(obj) }
func (b *belief) OnUpdate(_, obj any)   { b.put(obj) }

func (b *belief) OnDelete(obj any) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	b.hear(key, err, func() {
		delete(b.known, key)
		b.delivered[key] = true
	})
}

func (b *belief) put(obj any) {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	b.hear(key, err, func() { b.known[key] = versionOf(obj) })
}

func (b *belief) hear(key string, err error, learn func()) {
	b.mu.Lock()
	gate := b.gate
	b.mu.Unlock()
	if gate != nil {
		<-gate
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.frozen:
	case err != nil || key == "":
		b.wrong = append(b.wrong, fmt.Sprintf("notified of key %q: %v", key, err))
	default:
		learn()
	}
}

// state is what the handler knows, which deletions it got, and what was
// wrong with that.
func (b *belief) state() (known map[string]int, delivered map[string]bool, wrong []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.known), maps.Clone(b.delivered), slices.Clone(b.wrong)
}

// keys are what it knows, as [warmwatch.DurableOptions.Known] wants it.
func (b *belief) keys(context.Context) (keys []cache.ObjectName, err error) {
	known, _, _ := b.state()
	for key := range known {
		name, err := cache.ParseObjectName(key)
		if err != nil {
			return nil, err
		}
		keys = append(keys, name)
	}
	return keys, nil
}

func (b *belief) freeze() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frozen = true
}

// hang makes callbacks wait for the function that it returns.
func (b *belief) hang() (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	gate := make(chan struct{})
	b.gate = gate
	return sync.OnceFunc(func() {
		close(gate)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.gate = nil
	})
}

// versionOf is 0 for what has none.
func versionOf(obj any) int {
	m, err := meta.Accessor(obj)
	if err != nil {
		return 0
	}
	rv, _ := strconv.Atoi(m.GetResourceVersion())
	return rv
}

// settle is longer than it takes to commit.
func settle() {
	time.Sleep(5 * time.Second)
	synctest.Wait()
}

// newImages makes two images of one history: of a process that was killed, and of
// one that ended in order.
func newImages(t *testing.T, dir string, seed uint64) (images []*image) {
	t.Helper()
	path := filepath.Join(dir, "making.db")
	synctest.Test(t, func(t *testing.T) {
		killed := &image{Name: fmt.Sprintf("%d-killed", seed), Seed: seed}
		servers := map[kind]*apiserver.Server{}
		for i, k := range kinds {
			servers[k] = newServer(k, killed.source(k))
			servers[k].Advance([]int{600, 300}[i])
		}
		l, err := begin(path, 0, servers)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range kinds {
			for _, name := range durableNames {
				if err := l.addDurable(k, name, nil, false); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.addPlain(k); err != nil {
				t.Fatal(err)
			}
		}
		l.run(servers, nil)
		settle()
		churn := func(n int) {
			for range n {
				for _, k := range kinds {
					servers[k].Advance(10)
				}
				settle()
			}
		}
		churn(3)
		for _, k := range kinds {
			for _, name := range []string{absent, gone} {
				if err := l.remove(k, name); err != nil {
					t.Fatal(err)
				}
			}
		}
		churn(2)
		release := []func(){}
		for _, k := range kinds {
			release = append(release, l.durable[k][half].hang())
		}
		churn(4)
		killed.File = read(t, path)
		killed.note(servers, l)
		l.cancel()
		synctest.Wait()
		for _, f := range release {
			f()
		}
		if err := l.end(); err != nil {
			t.Fatal(err)
		}
		ended := &image{Name: fmt.Sprintf("%d-ended", seed), Seed: seed, File: read(t, path)}
		ended.note(servers, l)
		images = []*image{killed, ended}
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	return images
}

// note takes down what is known now.
func (im *image) note(servers map[kind]*apiserver.Server, l *life) {
	im.Servers = map[kind]serverImage{}
	for k, s := range servers {
		si := serverImage{Version: s.Version(), Beliefs: map[string]map[string]int{}}
		for name, b := range l.durable[k] {
			si.Beliefs[name], _, _ = b.state()
		}
		im.Servers[k] = si
	}
}

// read returns what is used of a file.
func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:l.high*l.pageSize]
}

// save and loadImage hand an image to other processes.
func (im *image) save(dir string) error {
	b, err := json.Marshal(im)
	if err != nil {
		return err
	}
	files := map[string][]byte{".json": b, ".db": im.File}
	for suffix, content := range files {
		if err := os.WriteFile(filepath.Join(dir, im.Name+suffix), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// imagesIn returns the images of a directory, for loadImage: all of them take more memory than a try may.
func imagesIn(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no images in %s", dir)
	}
	return names, err
}

func loadImage(name string) (*image, error) {
	im, base := &image{}, strings.TrimSuffix(name, ".json")
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, im); err != nil {
		return nil, err
	}
	if im.File, err = os.ReadFile(base + ".db"); err != nil {
		return nil, err
	}
	return im, nil
}

// TestImagesHaveWhatIsToBeDamaged, lest the attack passes by what it is for.
func TestImagesHaveWhatIsToBeDamaged(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, im := range newImages(t, t.TempDir(), 1) {
		l, err := parse(im.File)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d pages, %v", im.Name, l.high, l.classes())
		for _, class := range []string{
			"meta newest", "meta before", "freelist", "free page", "leaf root", "leaf space", "branch objects", "leaf objects",
			"branch index", "leaf index", "leaf store", "branch deltas", "leaf deltas", "leaf handlers", "leaf checkpoint",
		} {
			if len(l.of(class)) == 0 {
				t.Errorf("%s has no %s", im.Name, class)
			}
		}
		if !slices.ContainsFunc(l.of("leaf objects"), func(r region) bool { return r.bytes > l.pageSize }) {
			t.Errorf("%s has no object that is longer than a page", im.Name)
		}
		for k, s := range im.Servers {
			state := im.server(k, rng).ObjectsAt(s.Version)
			t.Logf("%s, %s: %d objects", im.Name, k, len(state))
			for _, name := range []string{half, absent, gone} {
				if d := differences(versions(state), s.Beliefs[name]); len(d) < 5 {
					t.Errorf("%s, %s: the handler %s has missed %d", im.Name, k, name, len(d))
				}
			}
			if d := differences(versions(state), s.Beliefs[present]); len(d) > 0 {
				t.Errorf("%s, %s: the handler that was there believes otherwise: %v", im.Name, k, d)
			}
		}
	}
}
