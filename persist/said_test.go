package persist

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// logged keeps the lines of a log.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) take() (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines, l.lines = l.lines, nil
	return lines
}

func (l *logged) options(o Options) Options {
	logger := funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, args)
	}, funcr.Options{})
	o.Logger = &logger
	return o
}

// TestAFailureIsLoggedOnceAnHourAndWhenItIsOver: an operator may not find a line that is
// days old, and cannot know whether it still holds.
func TestAFailureIsLoggedOnceAnHourAndWhenItIsOver(t *testing.T) {
	for name, failing := range map[string]func(t *testing.T, o Options) (db *DB, mend func()){
		"commits": func(t *testing.T, o Options) (*DB, func()) {
			db := openSound(t, testsupport.Path(t), o)
			db.mu.Lock()
			defer db.mu.Unlock()
			works := db.bolt.sync
			db.bolt.sync = func() error { return syscall.EROFS }
			db.bolt.synced.Store(false)
			db.noteChangeLocked(false)
			return db, func() {
				db.mu.Lock()
				defer db.mu.Unlock()
				db.bolt.sync = works
			}
		},
		"a commit that hangs": func(t *testing.T, o Options) (*DB, func()) {
			db, release := openSound(t, testsupport.Path(t), o), make(chan struct{})
			apply(t, db, func(b *Batch) { b.Put(testBucket, "held", &blob{text: "x", release: release}) })
			return db, func() { close(release) }
		},
		"a file that cannot be had": func(t *testing.T, o Options) (*DB, func()) {
			path := blockedPath(t)
			return open(t, path, o), func() {
				if err := os.Remove(filepath.Dir(path)); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logged
				db, mend := failing(t, log.options(Options{CommitInterval: time.Second}))
				after(3*time.Hour + 30*time.Minute)
				lines := log.take()
				if len(lines) != 4 {
					t.Errorf("in three hours and a half:\n%s", strings.Join(lines, "\n"))
				}
				for _, line := range lines {
					if !strings.Contains(line, `"error"=`) {
						t.Errorf("not an error: %s", line)
					}
				}
				mend()
				after(time.Hour)
				put(t, db, "key", "value")
				flush(t, db)
				if lines := log.take(); len(lines) != 1 || strings.Contains(lines[0], `"error"=`) {
					t.Errorf("when it was over:\n%s", strings.Join(lines, "\n"))
				}
			})
		})
	}
}

// TestWhyAFileGotASuccessorIsLogged, and what could not be read of it only if there is such.
func TestWhyAFileGotASuccessorIsLogged(t *testing.T) {
	const salvaged = "Salvaged what could be read of the cache file"
	for name, c := range map[string]struct {
		lose   func(t *testing.T, db *DB, path string)
		reason func(path string) string
	}{
		"it was removed": {func(t *testing.T, _ *DB, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, func(path string) string { return "persist: " + path + " was removed, or renamed, while it was in use" }},
		"it is damaged": {func(t *testing.T, db *DB, path string) {
			disorder(t, path)
			meetDisorder(t, db)
		}, func(string) string { return "persist: file is corrupt: " }},
	} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			var log logged
			db := openSound(t, path, log.options(manual))
			salvageable(t, db)
			c.lose(t, db, path)
			put(t, db, "key", "value")
			flush(t, db)
			lines := slices.DeleteFunc(log.take(), func(line string) bool { return !strings.Contains(line, salvaged) })
			if len(lines) != 1 || !strings.Contains(lines[0], `"reason"="`+c.reason(path)) || strings.Contains(lines[0], "null") {
				t.Errorf("the log has %q", lines)
			}
		})
	}
}

// TestErrorsNameThePathOfTheFile, and not the name that it had when it was made.
func TestErrorsNameThePathOfTheFile(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	file, before := db.bolt.file.Name(), db.bolt.sync
	db.bolt.synced.Store(false)
	db.bolt.sync = func() error { return &os.PathError{Op: "sync", Path: file, Err: syscall.EROFS} }
	put(t, db, "key", "value")
	want := "persist: commit to " + path + ": sync " + path + ": read-only file system"
	if err := db.Flush(); err == nil || err.Error() != want {
		t.Errorf("Flush returned %v", err)
	}
	db.bolt.sync = before
	flush(t, db)
}
