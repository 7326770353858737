package persist

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

func TestANewFileIsForItsOwnerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "directories", "cache.db")
	db := openSound(t, path, manual)
	put(t, db, "key", "value")
	flush(t, db)
	for name, want := range map[string]os.FileMode{
		path:                             0o600,
		filepath.Dir(path):               0o700 | os.ModeDir,
		filepath.Dir(filepath.Dir(path)): 0o700 | os.ModeDir,
	} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, expected %v", name, info.Mode(), want)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
	if db.Path() != path {
		t.Errorf("the path is %q", db.Path())
	}
}

// TestAFileThatWasBegunAndNotCommittedToIsUsed: the process has ended in between.
func TestAFileThatWasBegunAndNotCommittedToIsUsed(t *testing.T) {
	path := testsupport.Path(t)
	b, err := bolt.Open(path, 0o600, boltOptions())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"", "value"} {
		db := openSound(t, path, manual)
		if v, _ := get(t, db, "key"); v != want || len(db.SetAside()) > 0 {
			t.Errorf("it has %q, expected %q; set aside: %v", v, want, db.SetAside())
		}
		put(t, db, "key", "value")
		close1(t, db)
	}
}

func TestOpenRefusesPathsThatCannotBeMeant(t *testing.T) {
	dir := t.TempDir()
	for name, path := range map[string]string{"empty": "", "a directory": dir, "a device": os.DevNull} {
		db, err := Open(t.Context(), path, Options{Logger: &testsupport.Quiet})
		if err == nil {
			t.Errorf("%s: no error", name)
			_ = db.Close()
		}
	}
	if db, err := Open(t.Context(), filepath.Join(dir, "link"), Options{Logger: &testsupport.Quiet}); err != nil {
		t.Error(err)
	} else if err := db.Close(); err != nil {
		t.Error(err)
	}
}

func init() {
	// hold opens a file and holds it until its input ends.
	programs["hold"] = func(args []string) error {
		db, err := Open(context.Background(), args[0], Options{Logger: &testsupport.Quiet})
		if err != nil {
			return err
		}
		if db.MemoryOnly() {
			return db.Err()
		}
		if _, err := db.Update(func(b *Batch) { b.Put(testBucket, "key", []byte("held")) }); err != nil {
			return err
		}
		if err := db.Flush(); err != nil {
			return err
		}
		fmt.Println("held")
		_, err = io.Copy(io.Discard, os.Stdin)
		return err // Without Close, as if it were killed.
	}
}

// holdFile starts a process that holds the file until release is called.
func holdFile(t *testing.T, path string) (pid int, release func()) {
	t.Helper()
	cmd := testsupport.Program(t, "hold", path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the process says %q, %v", line, err)
	}
	return cmd.Process.Pid, func() {
		t.Helper()
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAFileOfAnotherProcessIsLeftAlone is S4.
func TestAFileOfAnotherProcessIsLeftAlone(t *testing.T) {
	path := testsupport.Path(t)
	_, release := holdFile(t, path)
	db := open(t, path, Options{LockTimeout: time.Millisecond})
	if err := db.Err(); !errors.Is(err, ErrLocked) {
		t.Errorf("Err is %v", err)
	}
	if !strings.Contains(fmt.Sprint(db.Err()), path) {
		t.Errorf("%q does not name the file", db.Err())
	}
	close1(t, db) // It would take the file.
	release()
	if v, _ := get(t, openSound(t, path, manual), "key"); v != "held" {
		t.Errorf("the file has %q", v)
	}
}

// TestWithoutAFileAllWorksFromMemory is for paths at which no file can be opened.
func TestWithoutAFileAllWorksFromMemory(t *testing.T) { // S5
	synctest.Test(t, func(t *testing.T) {
		db := open(t, blockedPath(t), Options{CommitInterval: time.Second})
		if !db.MemoryOnly() || db.Err() == nil {
			t.Fatalf("memory only: %v, %v", db.MemoryOnly(), db.Err())
		}
		seen := follow(t, db)
		n := apply(t, db, func(b *Batch) {
			b.Put(testBucket, "a", []byte("1"))
			b.PutNew(testBucket, "b", []byte("2"))
			b.Put(testBucket, "c", []byte("3"))
			b.Delete(testBucket, "c")
			b.Delete(testBucket, "never there")
		})
		if db.Durable() != n { // Nobody is to wait for a file that is not there.
			t.Errorf("durable up to %d, expected %d", db.Durable(), n)
		}
		flush(t, db)
		after(time.Second)
		if got := seen.Load(); got != n {
			t.Errorf("who waits has seen batch %d, expected %d", got, n)
		}
		for _, durable := range []bool{false, true} {
			s := snapshot(t, db, durable)
			got, err := scan(s, testBucket.Name, "")
			s.Close()
			if diff := cmp.Diff(map[string]string{"a": "1", "b": "2"}, got); diff != "" || err != nil {
				t.Errorf("%v, -want +got:\n%s", err, diff)
			}
		}
		// More than MaxPendingBytes.
		for range 3 {
			db.WaitForRoom()
			put(t, db, "large", repeat("x", 20<<20))
		}
		apply(t, db, func(b *Batch) { b.Drop(testBucket) })
		if got := contents(t, db); len(got) != 0 {
			t.Errorf("left after a drop: %v", got)
		}
		if db.pending.bytes != 0 {
			t.Errorf("%d bytes are held for nothing", db.pending.bytes)
		}
	})
}

func TestAReadOnlyFileIsLeftAlone(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write to every file")
	}
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	db = open(t, path, manual)
	if err := db.Err(); !errors.Is(err, os.ErrPermission) || !db.MemoryOnly() {
		t.Errorf("memory only: %v, %v", db.MemoryOnly(), err)
	}
}

func laterFormat(tx *bolt.Tx) error {
	return tx.Bucket([]byte(formatBucket)).Put([]byte(formatKey), []byte("2"))
}

// changeFile begins a file, and changes it as somebody else would.
func changeFile(t *testing.T, path string, change func(*bolt.Tx) error) {
	t.Helper()
	if err := openSound(t, path, manual).Close(); err != nil {
		t.Fatal(err)
	}
	b, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Update(change), b.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestAnUnknownFormatIsSetAside has files that bbolt can open, and we cannot.
func TestAnUnknownFormatIsSetAside(t *testing.T) {
	for name, change := range map[string]func(*bolt.Tx) error{
		"a later version": laterFormat,
		"no version": func(tx *bolt.Tx) error {
			return tx.Bucket([]byte(formatBucket)).Delete([]byte(formatKey))
		},
		"somebody else's": func(tx *bolt.Tx) error {
			_, err := tx.CreateBucket([]byte("somebody"))
			return errors.Join(err, tx.DeleteBucket([]byte(formatBucket)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			changeFile(t, path, change)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			db := openSound(t, path, manual)
			put(t, db, "key", "value")
			names := setAside(t, path)
			if len(names) != 1 {
				t.Fatalf("set aside: %v", names)
			}
			if aside, err := os.ReadFile(names[0]); err != nil || !bytes.Equal(before, aside) {
				t.Errorf("the file that was set aside has changed: %v", err)
			}
		})
	}
}

// TestAFileWithoutASyncedFreelistIsSetAside: bbolt v1.5.0 walks it in a
// goroutine of its own, where a bad page ends the process.
func TestAFileWithoutASyncedFreelistIsSetAside(t *testing.T) {
	path := testsupport.Path(t)
	b, err := bolt.Open(path, 0o600, &bolt.Options{NoFreelistSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = b.Update(func(tx *bolt.Tx) error {
		format, err := tx.CreateBucket([]byte(formatBucket))
		if err != nil {
			return err
		}
		return format.Put([]byte(formatKey), []byte(FormatVersion))
	})
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	openSound(t, path, manual)
	if names := setAside(t, path); len(names) != 1 {
		t.Errorf("set aside: %v", names)
	}
}
