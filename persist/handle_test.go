package persist

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// believing turns off the check of the meta pages, as if they were damaged just after it.
func believing(db *DB) { db.bolt.checkMeta = func() error { return nil } }

// withoutMeta zeroes both meta pages of a file in use.
func withoutMeta(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, 2*PageBytes), 0)
	return errors.Join(err, f.Close())
}

// TestAReaderThatPanicsInsideBboltHoldsNobodyUp: not those that come after it, not
// those that have a transaction open, not the committer, and not Close.
func TestAReaderThatPanicsInsideBboltHoldsNobodyUp(t *testing.T) {
	path := testsupport.Path(t)
	db := open(t, path, manual)
	for i := range 100 {
		put(t, db, fmt.Sprint(i), "value")
	}
	flush(t, db)
	put(t, db, "pending", "survives")
	old := db.bolt
	believing(db)
	early := snapshot(t, db, false)
	if err := withoutMeta(path); err != nil {
		t.Fatal(err)
	}
	if err := view(old, func(*bolt.Tx) error { return nil }); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("the first reader was told %v", err)
	}
	if !old.dead.Load() {
		t.Fatal("bbolt has not panicked: this test says nothing")
	}
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			if _, _, err := lookup(db, testBucket, "7"); err != nil && !errors.Is(err, ErrCorrupt) {
				t.Errorf("a later reader was told %v", err)
			}
		})
	}
	early.Close()
	readers.Wait()
	if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	flush(t, db)
	if v, _ := get(t, db, "pending"); v != "survives" || db.Err() != nil {
		t.Errorf("pending is %q, the DB says %v", v, db.Err())
	}
	if err := old.Close(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("to close the dead handle returned %v", err)
	}
}

// TestCloseOfADBWhoseReaderPanickedInsideBboltReturns, also when nothing is pending, so that
// no commit has the file replaced.
func TestCloseOfADBWhoseReaderPanickedInsideBboltReturns(t *testing.T) {
	path := testsupport.Path(t)
	db := open(t, path, manual)
	put(t, db, "a", "1")
	flush(t, db)
	believing(db)
	if err := withoutMeta(path); err != nil {
		t.Fatal(err)
	}
	if err := view(db.bolt, func(*bolt.Tx) error { return nil }); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err) // It has written to a new file.
	}
}

// TestABadFileBboltIsNotAskedFor: bbolt does not panic, so the handle can still be used and
// closed.
func TestABadFileBboltIsNotAskedFor(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"without meta pages":   withoutMeta,
		"truncated to nothing": func(path string) error { return os.Truncate(path, 0) },
		"truncated to a page":  func(path string) error { return os.Truncate(path, PageBytes) },
	} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			db := open(t, path, manual)
			put(t, db, "a", "1")
			flush(t, db)
			put(t, db, "a", "2") // Now both meta pages are of commits.
			flush(t, db)
			b := db.bolt
			early := snapshot(t, db, false)
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			for _, writable := range []bool{false, true} {
				if _, err := b.Begin(writable); !errors.Is(err, ErrCorrupt) || b.dead.Load() || b.noWriter.Load() {
					t.Errorf("writable %v: %v, dead %v, %v", writable, err, b.dead.Load(), b.noWriter.Load())
				}
			}
			early.Close()
			put(t, db, "b", "2")
			if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
			flush(t, db)
			if db.bolt == b {
				t.Fatal("the file was not replaced")
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// commitGate is a logger of bbolt's that holds up a commit where it begins.
type commitGate struct {
	bolt.Logger
	began, goOn chan struct{}
	once        sync.Once
}

func (g *commitGate) Debugf(format string, _ ...any) {
	if strings.HasPrefix(format, "Committing transaction %d") && !strings.Contains(format, "success") {
		g.once.Do(func() {
			close(g.began)
			<-g.goOn
		})
	}
}

func (*commitGate) Debug(...any)            {}
func (*commitGate) Infof(string, ...any)    {}
func (*commitGate) Errorf(string, ...any)   {}
func (*commitGate) Warningf(string, ...any) {}

// stuckCommit is a program, because it leaves a goroutine that waits in bbolt for ever:
// a reader panics while a commit is under way, which needs the same lock in its last
// step.
func stuckCommit(args []string) error {
	path := args[0]
	options := manual
	options.Logger = &testsupport.Quiet
	db, err := Open(path, options)
	if err != nil {
		return err
	}
	set := func(key, value string) error {
		_, err := db.Update(func(b *Batch) { b.Put(testBucket, key, Bytes(value)) })
		return err
	}
	gate := &commitGate{began: make(chan struct{}), goOn: make(chan struct{})}
	if err := errors.Join(set("a", "1"), db.Flush(), useLogger(db, gate), set("b", "2")); err != nil {
		return err
	}
	flushed := make(chan error)
	go func() { flushed <- db.Flush() }()
	<-gate.began
	believing(db)
	if err := withoutMeta(path); err != nil {
		return err
	}
	early := db.bolt
	if _, found, err := lookup(db, testBucket, "a"); found || err != nil { // It waits for the new file.
		return fmt.Errorf("the reader was told %v, %w", found, err)
	}
	close(gate.goOn) // Into the lock.
	if err := <-flushed; err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	if db.bolt == early {
		return errors.New("the file was not replaced")
	}
	if v, _, err := lookup(db, testBucket, "b"); v != "2" || err != nil {
		return fmt.Errorf("b is %q, %w", v, err)
	}
	return db.Close()
}

func init() { programs["stuck-commit"] = stuckCommit }

// useLogger has an idle DB's file opened again, by a bbolt that logs.
func useLogger(db *DB, l bolt.Logger) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if err := db.bolt.Close(); err != nil {
		return err
	}
	options := boltOptions(time.Second)
	options.Logger = l
	var file *os.File
	options.OpenFile = func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
		file, err = os.OpenFile(name, flag, mode)
		return file, err
	}
	b, err := bolt.Open(db.path, 0o600, options)
	if err == nil {
		db.bolt, db.boltFile = newHandle(b, file), file
	}
	return err
}

// TestACommitThatBboltHoldsUpForEverIsGivenUp. Its changes are written to the new file.
func TestACommitThatBboltHoldsUpForEverIsGivenUp(t *testing.T) {
	path := testsupport.Path(t)
	if out, err := testsupport.Program(t, "stuck-commit", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := contents(t, openSound(t, path, manual)); got["b"] != "2" {
		t.Errorf("after a restart there is %v", got)
	}
}

// TestATransactionEndsWhileBboltMapsTheFileAnew: Begin waits for all open transactions
// then, and must not keep them from ending.
func TestATransactionEndsWhileBboltMapsTheFileAnew(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	put(t, db, "a", "1")
	flush(t, db)
	early := snapshot(t, db, false)
	db.bolt.mu.Lock() // As a Begin that waits.
	early.Close()     // Would wait for ever.
	db.bolt.mu.Unlock()
	flush(t, db)
}

// TestAMetaPageThatCannotBeReadNowIsNotDamaged: the disk of another machine may not answer in time. The
// commit is tried again.
func TestAMetaPageThatCannotBeReadNowIsNotDamaged(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	put(t, db, "a", "1")
	flush(t, db)
	failed := errors.New("connection timed out")
	sound := db.bolt.checkMeta
	db.bolt.checkMeta = func() error {
		db.bolt.checkMeta = sound
		return failed
	}
	put(t, db, "a", "2")
	if err := db.Flush(); !errors.Is(err, failed) || errors.Is(err, ErrCorrupt) {
		t.Errorf("the commit returned %v", err)
	}
	flush(t, db)
	if aside := setAside(t, path); len(aside) != 0 || len(db.SetAside()) != 0 {
		t.Errorf("the file was replaced: %q", aside)
	}
}
