package warmwatch

import (
	"errors"
	"slices"
	"strconv"

	bolt "go.etcd.io/bbolt"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/record"
)

// damage changes or removes one value of the file: a delta, a position, what says how many there are, what is to be reconciled.
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
// told of (D2).
func (m *model) inspect(path string, told int) (left remains) {
	t := m.t
	c, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	if err := c.Status().Err; err != nil {
		t.Errorf("the crashed file is bad: %v", err)
	}
	l := &life{m: m, cache: c}
	s, want, err := l.newReader()
	if err != nil {
		t.Fatal(err)
	}
	parts, err := s.open() // It never runs.
	if err != nil {
		t.Fatal(err)
	}
	parts.sink.Load(want, nil)
	r := parts.sink.Checkpoint()
	left = remains{secrets: l.secrets, versions: map[string]string{}}
	left.rv, err = strconv.Atoi(r.ResourceVersion)
	if r.ResourceVersion != "" && err != nil {
		t.Error(err)
	}
	parts.indexer.Hide(false)
	for _, obj := range parts.indexer.List() {
		cm := l.configMap(obj)
		left.versions[cm.Namespace+"/"+cm.Name] = cm.ResourceVersion
	}
	if r.State == checkpoint.StateComplete {
		want := map[string]string{}
		for key, obj := range m.server.ObjectsAt(left.rv) {
			want[key] = obj.GetResourceVersion()
		}
		if d := cmp.Diff(want, left.versions); d != "" {
			t.Errorf("A2: the file does not hold the state at its resourceVersion %d (-want +got):\n%s", left.rv, d)
		}
		if parts.indexer.Len() != len(left.versions) {
			t.Errorf("Len is %d, expected %d", parts.indexer.Len(), len(left.versions))
		}
		if r.IndexVersion == s.indexVersion() && parts.indexer.IndexErr() == nil { // Else they were being rebuilt, and will be again.
			l.checkIndices()
		}
		if told > left.rv {
			t.Errorf("D2: the durable handler was told of version %d, the file has %d", told, left.rv)
		}
	}
	// A process that has died in a relist for another Go type leaves objects of both.
	bothTypes := m.transforms != nil && r.State != checkpoint.StateComplete && errors.Is(s.Status().Err, record.ErrTypeMismatch)
	if err := s.Status().Err; err == nil {
		m.damaged = false
	} else if !bothTypes && !m.damaged && !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	return left
}
