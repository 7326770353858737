package persist

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// panicking is a value whose code panics.
type panicking struct{}

func (panicking) AppendTo([]byte) ([]byte, error) { panic("a bug") }
func (panicking) SizeBytes() int                  { return 1 }

// TestWhatTheFileRefusesStaysInMemory and stops nothing else: what bbolt has no room
// for, and a value whose code panics, which says nothing of the file.
func TestWhatTheFileRefusesStaysInMemory(t *testing.T) {
	longest := repeat("k", MaxKeyBytes)
	for name, c := range map[string]struct {
		key   string
		value Value
		want  string // In Err.
	}{
		"a key that is too long":    {longest + "k", &blob{text: "v"}, "a key of 32768 bytes, the file has room for 32767"},
		"a value that is too large": {"key", &blob{text: repeat("v", 2000)}, "a value of 2004 bytes, the file has room for 1000"},
		"a value that panics":       {"key", panicking{}, "panic: a bug"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func(n int) { maxValueBytes = n }(maxValueBytes)
			maxValueBytes = 1000
			path := testsupport.Path(t)
			db := open(t, path, manual)
			put(t, db, longest, "fits")
			put(t, db, "old", "1")
			flush(t, db)
			for i := range 3 { // Each commit has it again.
				apply(t, db, func(b *Batch) {
					if i == 0 {
						b.Put(testBucket, c.key, c.value)
					}
					b.Put(testBucket, "new", Bytes(fmt.Sprint(i)))
				})
				flush(t, db)
			}
			if err := db.Err(); err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 2000 {
				t.Errorf("Err is %.2000v, expected %s", err, c.want)
			}
			found, err := db.View(testBucket, c.key, func(it *Item) error {
				if it.Value != c.value {
					t.Errorf("in memory it is %v", it.Value)
				}
				return nil
			})
			if !found || err != nil {
				t.Errorf("in memory: %v, %v", found, err)
			}
			if names := setAside(t, path); len(names) != 0 {
				t.Errorf("set aside: %v", names)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}

			db = openSound(t, path, manual)
			for key, want := range map[string]string{longest: "fits", "old": "1", "new": "2"} {
				if v, _ := get(t, db, key); v != want {
					t.Errorf("after a restart %.10s is %q", key, v)
				}
			}
			_, found, err = lookup(db, testBucket, c.key)
			if tooLong := len(c.key) > MaxKeyBytes; tooLong && found || !tooLong && !errors.Is(err, ErrCorrupt) {
				t.Errorf("the next process finds %v, %v", found, err)
			}
		})
	}
}

// TestAReaderWhoseCodePanicsIsToldOfTheValue, and the file is not replaced for it.
func TestAReaderWhoseCodePanicsIsToldOfTheValue(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	put(t, db, "key", "value")
	flush(t, db)
	s := snapshot(t, db, false)
	defer s.Close()
	view := func(*Item) error { panic("a bug") }
	for name, err := range map[string]error{
		"DB.View":       second(db.View(testBucket, "key", view)),
		"Snapshot.View": second(s.View(testBucket.Name, "key", view)),
		"Scan":          s.Scan(testBucket.Name, "", func(it *Item) (bool, error) { return true, view(it) }),
	} {
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || corrupt.Bucket != testBucket || corrupt.Key != "key" || !strings.Contains(err.Error(), "a bug") {
			t.Errorf("%s returned %v", name, err)
		}
	}
	flush(t, db)
	if names := setAside(t, path); len(names) != 0 {
		t.Errorf("set aside: %v", names)
	}
}

// TestAKeyThatIsTooLongCanBeReplacedAndDeleted, like others.
func TestAKeyThatIsTooLongCanBeReplacedAndDeleted(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	long := repeat("k", MaxKeyBytes+1)
	for _, v := range []string{"1", "2"} {
		put(t, db, long, v)
		flush(t, db)
		put(t, db, "other", v)
		flush(t, db)
		if got := contents(t, db); got[long] != v || len(got) != 2 || db.Err() == nil {
			t.Errorf("%d keys, the value is %q, Err %.100v", len(got), got[long], db.Err())
		}
	}
	apply(t, db, func(b *Batch) { b.Delete(testBucket, long) })
	flush(t, db)
	if got := contents(t, db); len(got) != 1 {
		t.Errorf("%d keys", len(got))
	}
}

// TestABucketThatTheFileCannotHaveStopsNothingElse, and no file is replaced for it.
func TestABucketThatTheFileCannotHaveStopsNothingElse(t *testing.T) {
	for name, bucket := range map[string]Bucket{
		"no space": {"", "x"}, "no name": {"space", ""}, "the format's": {formatBucket, formatKey},
		"a long name": {"space", repeat("x", MaxKeyBytes+2)},
	} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			db := open(t, path, manual)
			apply(t, db, func(b *Batch) {
				b.Put(bucket, "key", Bytes("value"))
				b.Put(bucket, repeat("k", MaxKeyBytes+1), Bytes("value"))
				b.Delete(bucket, "other")
			})
			put(t, db, "key", "value")
			flush(t, db)
			flush(t, db)
			if err := db.Err(); err == nil || !strings.Contains(err.Error(), "is no name for a bucket") || len(err.Error()) > 4000 {
				t.Errorf("Err is %.200v", err)
			}
			if found, err := db.View(bucket, "key", func(*Item) error { return nil }); !found || err != nil {
				t.Errorf("in memory: %v, %v", found, err)
			}
			if names := setAside(t, path); len(names) != 0 {
				t.Errorf("set aside: %v", names)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
			expectContents(t, openSound(t, path, manual), map[string]string{"key": "value"})
		})
	}
}
