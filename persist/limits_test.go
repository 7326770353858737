package persist

import (
	"errors"
	"strings"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

func TestTheLongestKeyFits(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	longest := repeat("k", MaxKeyBytes)
	put(t, db, longest, "fits")
	close1(t, db)
	expectContents(t, openSound(t, path, manual), map[string]string{longest: "fits"})
}

// TestAReaderWhoseCodePanicsGetsTheValue, and the file is not replaced for it.
func TestAReaderWhoseCodePanicsGetsTheValue(t *testing.T) {
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
