//go:build unix

package persist

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestWhatKilledProcessesWereMakingIsRemovedAtOnce: each of these files may be as long as the
// cache file, and a process that is killed because its salvage takes long is started again.
func TestWhatKilledProcessesWereMakingIsRemovedAtOnce(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	salvageable(t, db)
	close1(t, db)
	disorder(t, path)
	for range 3 {
		if err := testsupport.Program(t, "salvage", path, "at the start", "2").Run(); err == nil {
			t.Fatal("the process was not killed")
		}
		if left := db.filesBeside(newSuffix, isNumber); len(left) != 1 {
			t.Errorf("it left %v", left)
		}
	}
	openSound(t, path, manual)
	if left := db.filesBeside(newSuffix, isNumber); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestAFileThatIsBeingMadeIsNotRemoved by another process, not even when it is brand-new.
func TestAFileThatIsBeingMadeIsNotRemoved(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	defer func(before func(string) error) { crashpoint = before }(crashpoint)
	crashpoint = func(what string) error {
		if what == "the new file is begun" || what == "the new file is whole" {
			db.removeAbandoned()
			if left := db.filesBeside(newSuffix, isNumber); len(left) != 1 {
				t.Errorf("%s: left are %v", what, left)
			}
		}
		return nil
	}
	salvageable(t, db)
	disorder(t, path)
	meetDisorder(t, db)
	put(t, db, "later", "value")
	flush(t, db)
	if len(setAside(t, path)) != 1 {
		t.Error("the file was not replaced")
	}
}

// TestAFileThatIsAboutToBeLockedIsNotRemoved by processes that remove abandoned files again
// and again just then.
func TestAFileThatIsAboutToBeLockedIsNotRemoved(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				db.removeAbandoned()
			}
		}
	}()
	for range 300 {
		f, err := db.createNew()
		if err != nil {
			t.Error(err)
			break
		}
		if !isAt(f, f.Name()) {
			t.Error("it was removed")
		}
		if err := errors.Join(os.Remove(f.Name()), f.Close()); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-stopped
}

// TestAFileThatWasNeverLockedIsRemovedLater: its process must have ended.
func TestAFileThatWasNeverLockedIsRemovedLater(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	left := db.path + newSuffix + "1"
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, age := range []time.Duration{0, abandonedAge + 2*aboutToBeLocked} {
		then := time.Now().Add(-age)
		if err := os.Chtimes(left, then, then); err != nil {
			t.Fatal(err)
		}
		db.removeAbandoned()
		if _, err := os.Stat(left); (err == nil) != (age == 0) {
			t.Errorf("after %v: %v", age, err)
		}
	}
}

// TestAnAbandonedFileOfTheFutureIsRemoved: the clock may have gone back since.
func TestAnAbandonedFileOfTheFutureIsRemoved(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	left := db.path + newSuffix + "1"
	if err := os.WriteFile(left, []byte("half of a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(24 * time.Hour)
	if err := os.Chtimes(left, then, then); err != nil {
		t.Fatal(err)
	}
	db.removeAbandoned()
	if _, err := os.Stat(left); abandonedAge == 0 && err == nil {
		t.Error("it is still there, and nobody holds its lock")
	}
}
