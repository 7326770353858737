package persist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestASoundFileIsNotTakenForDamaged, whatever bbolt has done to it: each of these files is
// inspected after each commit.
func TestASoundFileIsNotTakenForDamaged(t *testing.T) {
	rnd := testsupport.Rand(t)
	for range testsupport.Rounds(4, 1) {
		inspectSoundFile(t, rnd)
	}
}

func inspectSoundFile(t *testing.T, rnd *rand.Rand) {
	t.Helper()
	b, err := bolt.Open(testsupport.Path(t), 0o600, &bolt.Options{
		PageSize: []int{1 << 10, 4 << 10, PageBytes}[rnd.Intn(3)], NoSync: true, NoGrowSync: true,
		FreelistType: []bolt.FreelistType{bolt.FreelistMapType, bolt.FreelistArrayType}[rnd.Intn(2)],
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(b.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	keyBytes, valueBytes := []int{8, 60, 400}[rnd.Intn(3)], []int{0, 20, 300, 3000}[rnd.Intn(4)]
	keys, buckets := 1+rnd.Intn(4000), []int{1, 3, 100}[rnd.Intn(3)]
	for range 30 {
		err := b.Update(func(tx *bolt.Tx) error {
			deletions := rnd.Float64()
			for range []int{1, 10, 300, 2000}[rnd.Intn(4)] {
				space, err := tx.CreateBucketIfNotExists(fmt.Appendf(nil, "space %d", rnd.Intn(buckets)))
				if err != nil {
					return err
				}
				name := []byte(fmt.Sprintf("bucket %d", rnd.Intn(buckets)) + repeat("b", keyBytes))
				if rnd.Intn(200) == 0 && space.Bucket(name) != nil {
					if err := space.DeleteBucket(name); err != nil {
						return err
					}
				}
				bucket, err := space.CreateBucketIfNotExists(name)
				if err != nil {
					return err
				}
				i := rnd.Intn(keys)
				key := []byte(fmt.Sprintf("%c%06d", keyPrefix, i) + repeat("k", i*7919%keyBytes))
				if rnd.Float64() < deletions {
					err = bucket.Delete(key)
				} else {
					err = bucket.Put(key, make([]byte, rnd.Intn(valueBytes+1)))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		in, err := inspect(f)
		if err == nil {
			err = in.walk(b)
		}
		if !errors.Is(err, ErrUnknownFormat) { // It has no format, which is looked for last.
			t.Fatal(err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAPageThatIsVeryLongIsNotReadWhole, although the file may be as long as its header says.
func TestAPageThatIsVeryLongIsNotReadWhole(t *testing.T) {
	path := testsupport.Path(t)
	manyLeaves(t, path)
	im := &image{pageSize: PageBytes, bytes: testsupport.ReadUsed(t, path)}
	const pages = 1 << 17 // A gibibyte.
	end := len(im.bytes) / PageBytes
	root := slices.Clone(im.page(im.bytes, int(binary.NativeEndian.Uint64(im.newestMeta(im.bytes)[metaRootAt:]))))
	binary.NativeEndian.PutUint64(root, uint64(end))
	binary.NativeEndian.PutUint32(root[pageOverflowAt:], uint32(pages-end-1))
	im.setMeta(im.bytes, metaHighAt, pages)
	im.setMeta(im.bytes, metaRootAt, uint64(end))
	path = testsupport.Path(t)
	if err := os.WriteFile(path, append(im.bytes, root...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, pages*PageBytes); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	in, err := inspect(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := openBolt(f)
	if err != nil {
		t.Fatal(err)
	}
	err = in.walk(b.DB)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, ErrCorrupt) || n > 64<<20 {
		t.Errorf("%d bytes were allocated; error %v", n, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
