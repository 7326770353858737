package persist

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestWhatTheFileHasNoRoomForIsRefused at once, and the DB goes on.
func TestWhatTheFileHasNoRoomForIsRefused(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	longest := repeat("k", MaxKeyBytes)
	for name, fn := range map[string]func(*Batch){
		"a key that is too long": func(b *Batch) { b.Put(testBucket, longest+"k", nil) },
		"no space":               func(b *Batch) { b.Put(Bucket{"", "x"}, "key", nil) },
		"no name":                func(b *Batch) { b.PutNew(Bucket{"space", ""}, "key", nil) },
		"the format's":           func(b *Batch) { b.Drop(Bucket{formatBucket, formatKey}) },
		"a long name":            func(b *Batch) { b.Delete(Bucket{"space", repeat("x", MaxKeyBytes+2)}, "key") },
	} {
		func() {
			defer func() {
				if p := fmt.Sprint(recover()); !strings.Contains(p, "room for") && !strings.Contains(p, "is no name for a bucket") || len(p) > 4000 {
					t.Errorf("%s: panic %.200s", name, p)
				}
			}()
			_, _ = db.Update(fn)
		}()
	}
	put(t, db, longest, "fits")
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	expectContents(t, openSound(t, path, manual), map[string]string{longest: "fits"})
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
