package persist

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
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
