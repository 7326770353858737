package indexer

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
)

// An index entry is a key
//
//	len(name) name  len(token) token  object key
//
// with lengths as uvarints: no name or value can be taken for another.
// The token is 'v' and the indexed value. For a value that is too long for a key
// of bbolt it is 'h' and the value's SHA-256, and the entry's value is the
// indexed value.
const (
	inlineToken = 'v'
	hashedToken = 'h'

	maxInlineBytes = 1024
)

type indexPut struct {
	key   string
	value []byte
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func token(value string) string {
	if len(value) <= maxInlineBytes {
		return string(inlineToken) + value
	}
	sum := sha256.Sum256([]byte(value))
	return string(hashedToken) + string(sum[:])
}

func indexPrefix(name string) string {
	if len(name) > maxInlineBytes { // Treated as a value that is too long.
		name = token(name)
	}
	return string(appendString(nil, name))
}

func valuePrefix(name, value string) string {
	return string(appendString([]byte(indexPrefix(name)), token(value)))
}

func newIndexPut(name, value, objectKey string) indexPut {
	p := indexPut{key: valuePrefix(name, value) + objectKey}
	if len(value) > maxInlineBytes {
		p.value = []byte(value)
	}
	return p
}

// parseEntry splits the key of an entry behind namePrefix, the prefix of its index.
func parseEntry(it *persist.Item, namePrefix string) (value, prefix, objectKey string, err error) {
	rest := it.Key[len(namePrefix):]
	n, used := binary.Uvarint([]byte(rest[:min(len(rest), binary.MaxVarintLen64)]))
	if used <= 0 || n == 0 || n > uint64(len(rest)-used) {
		return "", "", "", &persist.CorruptError{Key: it.Key, Bucket: persist.Bucket{Name: IndexBucket}, Err: fmt.Errorf("malformed index entry")}
	}
	tok := rest[used : used+int(n)]
	prefix = it.Key[:len(namePrefix)+used+int(n)]
	objectKey = it.Key[len(prefix):]
	value = tok[1:]
	payload, err := it.Payload() // The checksum also covers the key.
	if err != nil {
		return "", "", "", err
	}
	if tok[0] == hashedToken {
		value = string(payload)
	}
	return value, prefix, objectKey, nil
}

// An IndexFuncError says that an index function failed on a stored object.
type IndexFuncError struct {
	Index, Key string
	Err        error
}

func (e *IndexFuncError) Error() string {
	return fmt.Sprintf("unable to calculate an index entry for key %q on index %q: %v", e.Key, e.Index, e.Err)
}

func (e *IndexFuncError) Unwrap() error { return e.Err }

// indexValues calls an index function for an object that is about to be stored. If the
// function fails, indexValues panics, as in client-go (thread_safe_store.go,
// updateSingleIndex), because the index could never be right.
func indexValues(f cache.IndexFunc, name, key string, obj any) []string {
	values, err := f(obj)
	if err != nil {
		panic(&IndexFuncError{Index: name, Key: key, Err: err})
	}
	return values
}

// storedIndexValues calls an index function for a stored object. It returns a panic as an error: perhaps only an older
// version of the function or the transform understands the object, and every process would meet the panic again.
func storedIndexValues(f cache.IndexFunc, name, key string, obj any) (values []string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
		if err != nil {
			values, err = nil, &IndexFuncError{Index: name, Key: key, Err: err}
		}
	}()
	return f(obj)
}

// scanPrefix calls fn for all index entries with a prefix, from from on.
func scanPrefix(s *persist.Snapshot, prefix, from string, fn func(*persist.Item) (bool, error)) error {
	return s.Scan(IndexBucket, from, func(it *persist.Item) (bool, error) {
		if !strings.HasPrefix(it.Key, prefix) {
			_, err := it.Payload() // The checksum covers the key: a damaged key must not hide the entries behind it.
			return false, err
		}
		return fn(it)
	})
}

// after returns the smallest string that is greater than all strings with this prefix. A prefix is never all 0xff,
// because it begins with a length.
func after(prefix string) string {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < 0xff {
			b[i]++
			return string(b[:i+1])
		}
	}
	return prefix
}
