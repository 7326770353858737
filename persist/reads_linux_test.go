package persist

import (
	"testing"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestReadsThatFailForAWhileAreNoDamage (S6): commits fail, the first attempt and those after it, which first make sure
// of what is in the file.
func TestReadsThatFailForAWhileAreNoDamage(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, Options{CommitInterval: time.Millisecond})
	put(t, db, "before", "1")
	flush(t, db)
	restore := testsupport.FailReads(t, path)
	put(t, db, "during", "2")
	for begun := time.Now(); db.Metrics().FailedCommits < 3; time.Sleep(time.Millisecond) {
		if code, _, err := db.Problem(); code == CodeFileDamaged || time.Since(begun) > time.Minute {
			t.Errorf("%d commits have failed: %v", db.Metrics().FailedCommits, err)
			break
		}
	}
	restore()
	flush(t, db)
	if code, _, err := db.Problem(); err != nil {
		t.Errorf("afterwards: %v, %v", code, err)
	}
	close1(t, db)
	expectContents(t, openSound(t, path, manual), map[string]string{"before": "1", "during": "2"})
}
