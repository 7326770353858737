package reflector

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/warmwatch/warmwatch/internal/request"
)

// A Difference says that the server's list and the store have different objects for a key, or only one of them has one.
// Two comparisons find the same Difference if the object did not change in between.
type Difference struct {
	Listed, Stored bool
	// ListedVersion and StoredVersion are resourceVersions. A stored object that cannot be read has none.
	ListedVersion, StoredVersion string
}

// Compare compares the store with a list by content, and changes nothing. list calls its argument with each object of
// the server. An object that the store refuses is a Difference. One that changes meanwhile may be one, too.
func (k *Sink) Compare(list func(func(runtime.Object) error) error) (map[string]Difference, error) {
	found, listed := map[string]Difference{}, map[string]struct{}{}
	err := list(func(obj runtime.Object) error {
		key, d, same, err := k.compare(obj)
		listed[key] = struct{}{}
		if !same {
			found[key] = d
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, k.indexer.Keys(func(keys []string) error {
		for _, key := range keys {
			if _, is := listed[key]; is {
				continue
			}
			if version, exists := k.head(key); exists {
				found[key] = Difference{Stored: true, StoredVersion: version}
			}
		}
		return nil
	})
}

// compare compares an object of the server with the stored one.
func (k *Sink) compare(obj runtime.Object) (key string, d Difference, same bool, err error) {
	if err := k.lockOpen(); err != nil {
		return "", d, false, err
	}
	defer k.mu.Unlock()
	sent := request.ItemOf(obj) // The transform may change it.
	value, key, refused := k.encodeLocked(obj)
	if refused != nil {
		key = keyOf(sent)
	}
	d.Listed, d.ListedVersion = true, sent.ResourceVersion
	d.StoredVersion, d.Stored = k.head(key)
	if refused == nil {
		w := k.indexer.Writer()
		defer w.Close()
		same = w.Holds(key, value)
	}
	return key, d, same, nil
}

// head returns the version of a stored object.
func (k *Sink) head(key string) (resourceVersion string, exists bool) {
	w := k.indexer.Writer()
	defer w.Close()
	_, resourceVersion, exists = w.Head(key)
	return resourceVersion, exists
}
