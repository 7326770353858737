package model_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"

	bolt "go.etcd.io/bbolt"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/record"
)

// damage changes or removes one value of the file: a delta, a position, what says how many there are, what is to be
// reconciled.
func (m *model) damage() {
	db, err := bolt.Open(m.path, 0o600, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	defer db.Close()
	vanish := m.rng.IntN(2) == 0
	if err := db.Update(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, space *bolt.Bucket) error {
			if string(name) == "warmwatch" {
				return nil
			}
			buckets := []string{"deltas", "deltas", "deltas", "handlers", "store", "queue", "work", "deleted"}
			bucket := buckets[m.rng.IntN(len(buckets))]
			b := space.Bucket([]byte(bucket))
			if b == nil {
				return nil
			}
			var keys [][]byte
			c := b.Cursor()
			for k, _ := c.First(); k != nil; k, _ = c.Next() {
				keys = append(keys, slices.Clone(k))
			}
			if len(keys) == 0 {
				return nil
			}
			m.stats.Damaged++
			m.damaged = true
			k := keys[m.rng.IntN(len(keys))]
			m.t.Logf("damage of %s, key %q, which vanishes: %v", bucket, k, vanish)
			v := slices.Clone(b.Get(k))
			if vanish {
				return b.Delete(k)
			}
			v[m.rng.IntN(len(v))] ^= 1 << m.rng.IntN(8) // At least the checksum is there.
			return b.Put(k, v)
		})
	}); err != nil {
		m.t.Fatal(err)
	}
}

// remains are what a crash has left in the file.
type remains struct {
	rv       int
	secrets  bool              // They are of the other Go type, see transforms.
	versions map[string]string // Of the objects, by key.
}

// inspect checks the invariants of the file itself: it holds the state of the
// server at the version it says (A1, A2), and all that the durable handler was
// notified of (D2).
func (m *model) inspect(path string, delivered int) (left remains) {
	t := m.t
	db, err := persist.Open(t.Context(), path, persist.Options{Logger: &testsupport.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	if _, _, err := db.Problem(); err != nil {
		t.Errorf("the crashed file is bad: %v", err)
	}
	l, r := &life{m: m}, m.checkpointIn(db)
	l.secrets = strings.HasSuffix(r.TransformVersion, transformedToSecrets)
	left = remains{secrets: l.secrets, versions: map[string]string{}}
	var unreadable []error
	ix, err := indexer.New(indexer.Options{
		DB: db, Space: modelSpace, NewObject: l.newObject, Indexers: cache.Indexers{"color": l.byColor},
		OnCorrupt: func(err error) { unreadable = append(unreadable, err) }, Logger: &testsupport.Quiet,
	})
	if errors.Is(err, persist.ErrCorrupt) && m.damaged {
		return left
	}
	if err != nil {
		t.Fatal(err)
	}
	defer ix.Release()
	left.rv, err = strconv.Atoi(r.ResourceVersion)
	if r.ResourceVersion != "" && err != nil {
		t.Error(err)
	}
	for _, obj := range ix.List() {
		cm := l.configMap(obj)
		left.versions[cm.Namespace+"/"+cm.Name] = cm.ResourceVersion
	}
	// A process that has died in a relist for another Go type leaves objects of both.
	bothTypes := m.transforms != nil && r.State != checkpoint.StateComplete
	for _, err := range unreadable {
		if !m.damaged && (!bothTypes || !errors.Is(err, record.ErrTypeMismatch)) {
			t.Error(err)
		}
	}
	if r.State == checkpoint.StateComplete && (len(unreadable) == 0 || !m.damaged) {
		m.checkComplete(l, ix, left, delivered)
	}
	if len(unreadable) == 0 {
		m.damaged = false
	}
	return left
}

// checkComplete compares a complete store with the server at its version.
func (m *model) checkComplete(l *life, ix *indexer.Indexer, left remains, delivered int) {
	want := map[string]string{}
	for key, obj := range m.server.ObjectsAt(left.rv) {
		want[key] = obj.GetResourceVersion()
	}
	if d := cmp.Diff(want, left.versions); d != "" {
		m.t.Errorf("A2: the file does not hold the state at its resourceVersion %d (-want +got):\n%s", left.rv, d)
	}
	if ix.Len() != len(left.versions) {
		m.t.Errorf("Len is %d, expected %d", ix.Len(), len(left.versions))
	}
	if ix.IndexErr() == nil { // Else the entries were being made, and will be again.
		l.checkIndex(ix)
	}
	if delivered > left.rv {
		m.t.Errorf("D2: the durable handler was notified of version %d, the file has %d", delivered, left.rv)
	}
}

func (l *life) newObject() any {
	if l.secrets {
		return &corev1.Secret{}
	}
	return &corev1.ConfigMap{}
}
