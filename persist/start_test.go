package persist

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

func init() {
	// start opens a file and ends: while bbolt opens it, by a panic that nobody recovers, or right afterwards.
	programs["start"] = func(args []string) error {
		crashpoint = func() {
			switch args[1] {
			case "stack":
				debug.SetMaxStack(1 << 20)
				var overflow func(int) int
				overflow = func(n int) int { return overflow(n+1) + 1 }
				overflow(0)
			case "loop":
				fmt.Println("loops")
				time.Sleep(time.Hour)
			}
		}
		o := Options{CommitInterval: time.Hour, LockTimeout: time.Hour, Logger: &testsupport.Quiet}
		db, err := Open(context.Background(), args[0], o)
		if err != nil || db.MemoryOnly() {
			return fmt.Errorf("no file: %w, %w", err, db.Err())
		}
		if v, _, err := lookup(db, testBucket, "key"); v != "value" || err != nil {
			return fmt.Errorf("the value is %q, %w", v, err)
		}
		os.Exit(1)
		return nil
	}
}

// start runs the program, and returns what it says when it ends.
func start(t *testing.T, path, how string) string {
	t.Helper()
	cmd := testsupport.Program(t, "start", path, how)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if how == "loop" {
		said, _ := bufio.NewReader(out).ReadString('\n')
		_ = errors.Join(cmd.Process.Kill(), cmd.Wait())
		return said
	}
	said, _ := io.ReadAll(out)
	if err := cmd.Wait(); err == nil {
		t.Fatal("the process has ended well")
	}
	return string(said)
}

func startFile(t *testing.T) (path string) {
	t.Helper()
	path = testsupport.Path(t)
	db := openSound(t, path, manual)
	put(t, db, "key", "value")
	close1(t, db)
	return path
}

// TestAFileOverWhichProcessesDieIsSetAside (S3): by the fourth Open, whatever bbolt does with it.
func TestAFileOverWhichProcessesDieIsSetAside(t *testing.T) {
	for how, says := range map[string]string{"stack": "stack overflow", "loop": "loops"} {
		t.Run(how, func(t *testing.T) {
			path := startFile(t)
			for range maxStarts {
				if said := start(t, path, how); !strings.Contains(said, says) {
					t.Fatalf("it says %.1000s", said)
				}
			}
			db := openSound(t, path, manual)
			if got := contents(t, db); len(got) != 0 || len(setAside(t, path)) != 1 {
				t.Errorf("%v, set aside: %v", got, setAside(t, path))
			} else if reason := db.SetAside()[0].Reason; !strings.Contains(reason, "3 processes in a row have ended") {
				t.Errorf("set aside because %s", reason)
			}
			close1(t, db)
			if openSound(t, path, manual); len(setAside(t, path)) != 1 {
				t.Errorf("the new file was set aside as well: %v", setAside(t, path))
			}
			if _, err := os.Stat(path + StartingSuffix); err == nil {
				t.Error("the start marker is still there")
			}
		})
	}
}

// TestProcessesThatDieLaterLoseNothing: only deaths while bbolt opens the file count, and one that opens it ends the
// row.
func TestProcessesThatDieLaterLoseNothing(t *testing.T) {
	path := startFile(t)
	for range 10 {
		if said := start(t, path, ""); strings.Contains(said, "file") {
			t.Fatal(said)
		}
	}
	for range 2 {
		for range maxStarts - 1 {
			start(t, path, "stack")
		}
		start(t, path, "")
	}
	if v, _ := get(t, openSound(t, path, manual), "key"); v != "value" || len(setAside(t, path)) != 0 {
		t.Errorf("%q, set aside: %v", v, setAside(t, path))
	}
}

// TestAProcessThatIsKilledWhileItWaitsCountsForNothing: it has not opened the file.
func TestAProcessThatIsKilledWhileItWaitsCountsForNothing(t *testing.T) {
	path := startFile(t)
	db := openSound(t, path, manual)
	for range maxStarts + 1 {
		cmd := testsupport.Program(t, "start", path, "")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	close1(t, db)
	if v, _ := get(t, openSound(t, path, manual), "key"); v != "value" || len(setAside(t, path)) != 0 {
		t.Errorf("%q, set aside: %v", v, setAside(t, path))
	}
}

// TestWithoutAStartMarkerAFileIsOpened: here a directory has its name.
func TestWithoutAStartMarkerAFileIsOpened(t *testing.T) {
	path := startFile(t)
	if err := errors.Join(os.Mkdir(path+StartingSuffix, 0o700), os.WriteFile(path+StartingSuffix+"/x", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range maxStarts + 1 {
		db := openSound(t, path, manual)
		if v, _ := get(t, db, "key"); v != "value" {
			t.Errorf("the value is %q", v)
		}
		close1(t, db)
	}
}

// TestAFileThatCannotBeCommittedToAtTheStart is used all the same, as one whose commits fail (S6).
func TestAFileThatCannotBeCommittedToAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := startFile(t)
		failing := true
		defer func(before func(string) error) { syncDirectory = before }(syncDirectory)
		syncDirectory = func(string) error {
			if failing {
				return errors.New("input/output error")
			}
			return nil
		}
		db := open(t, path, Options{CommitInterval: time.Second})
		if _, err := os.Stat(path + StartingSuffix); err == nil {
			t.Error("the start marker is still there")
		}
		if v, _ := get(t, db, "key"); v != "value" || db.Err() == nil || db.MemoryOnly() || db.Durable() == db.Applied() {
			t.Errorf("%q, Err %v, durable up to %d of %d", v, db.Err(), db.Durable(), db.Applied())
		}
		if s, err := db.DurableSnapshot(testBucket.Space); err == nil {
			s.Close()
			t.Error("what may be lost counts as durable")
		}
		if code, since, _ := db.Problem(); code != CodeNotWritten || since.IsZero() {
			t.Errorf("problem %q since %v", code, since)
		}
		put(t, db, "key", "newer")
		after(10 * time.Second)
		failing = false
		flush(t, db)
		snapshot(t, db, true).Close()
		close1(t, db)
		if v, _ := get(t, openSound(t, path, manual), "key"); v != "newer" {
			t.Errorf("the file has %q", v)
		}
	})
}

// TestOneSetAsideFileIsKept, the newest, and nothing of somebody else's is removed.
func TestOneSetAsideFileIsKept(t *testing.T) {
	path := testsupport.Path(t)
	writeFile(t, path+corruptSuffix+"kept", "")
	for i := range 3 {
		writeFile(t, path, fmt.Sprint("damaged ", i))
		db := openSound(t, path, manual)
		aside := db.SetAside()
		if len(aside) != 1 || aside[0].Reason == "" {
			t.Fatalf("set aside: %v", aside)
		}
		if b, err := os.ReadFile(aside[0].Path); string(b) != fmt.Sprint("damaged ", i) || err != nil {
			t.Errorf("set aside: %q, %v", b, err)
		}
		close1(t, db)
	}
	if names := setAside(t, path); len(names) != 2 {
		t.Errorf("set aside: %v", names)
	}
}

// TestAnEmptyFileIsBegunInPlace: it may be a mount point.
func TestAnEmptyFileIsBegunInPlace(t *testing.T) {
	path := testsupport.Path(t)
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	db := openSound(t, path, manual)
	put(t, db, "key", "value")
	close1(t, db)
	if v, _ := get(t, openSound(t, path, manual), "key"); v != "value" {
		t.Errorf("the file has %q", v)
	}
	if info, err := os.Stat(path); err != nil || !os.SameFile(before, info) || info.Mode() != 0o600 || len(setAside(t, path)) != 0 {
		t.Errorf("%v, %v, set aside: %v", info, err, setAside(t, path))
	}
}

// TestEachBitOfAFilesHeadsIsFoundOut (S2): a bit of the page heads, the elements and the keys that has flipped while
// nobody used the file has it set aside, or changes nothing.
func TestEachBitOfAFilesHeadsIsFoundOut(t *testing.T) {
	path := testsupport.Path(t)
	manyLeaves(t, path)
	sound := testsupport.ReadUsed(t, path)
	db := openSound(t, path, manual)
	want := contents(t, db)
	close1(t, db)
	rnd := testsupport.Rand(t)
	used := slices.DeleteFunc((&image{pageSize: PageBytes, bytes: sound}).livePages(t, path), func(id int) bool { return id < 2 })
	quiet := 0
	flips := rounds(3000, 200, 100)
	for i := range flips {
		b := slices.Clone(sound)
		at := used[rnd.Intn(len(used))]*PageBytes + rnd.Intn(PageBytes)
		if i%2 == 0 {
			at = at/PageBytes*PageBytes + rnd.Intn(80)
		}
		b[at] ^= 1 << rnd.Intn(8)
		writeFile(t, path, string(b))
		db, err := Open(t.Context(), path, Options{CommitInterval: time.Hour, Logger: &testsupport.Quiet})
		if err != nil || db.Err() != nil {
			t.Fatal(err, db.Err())
		}
		missing := 0
		for key, value := range want {
			switch v, found, err := lookup(db, testBucket, key); {
			case err != nil && !errors.Is(err, ErrCorrupt), found && err == nil && v != value:
				t.Fatalf("byte %d of page %d: key %s is %.20q, %v", at%PageBytes, at/PageBytes, key, v, err)
			case !found:
				missing++
			}
		}
		// Whoever knows the keys finds one that has become another.
		aside, other := len(db.SetAside()) == 1, 0
		s := snapshot(t, db, false)
		if err := s.Scan(testBucket.Name, "", func(it *Item) (bool, error) {
			if _, found := want[it.Key]; !found {
				other++
			}
			return true, nil
		}); err != nil {
			t.Error(err)
		}
		s.Close()
		if !aside && missing != other && missing != len(want) { // A bucket may have another name, as a whole.
			t.Errorf("byte %d of page %d: %d keys are missing, and %d others are there", at%PageBytes, at/PageBytes, missing, other)
		}
		if !aside {
			quiet++
		}
		close1(t, db)
	}
	writeFile(t, path, string(sound))
	t.Logf("%d of %d were not set aside", quiet, flips)
}

// livePages lists the pages that are not free.
func (im *image) livePages(t *testing.T, path string) (ids []int) {
	t.Helper()
	b, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.View(func(tx *bolt.Tx) error {
		for id := range im.pages() {
			p, err := tx.Page(id)
			if err != nil || p == nil {
				return err
			}
			if p.Type != "free" {
				ids = append(ids, id)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return ids
}

// TestOneProcessUsesAFile (S4): a second one waits, and then works from memory until it ends.
func TestOneProcessUsesAFile(t *testing.T) {
	path := testsupport.Path(t)
	pid, release := holdFile(t, path)
	var log logged
	begin := time.Now()
	db := open(t, path, log.options(Options{LockTimeout: 1500 * time.Millisecond}))
	if waited := time.Since(begin); waited < 1500*time.Millisecond {
		t.Errorf("waited for %v", waited)
	}
	if err := db.Err(); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), path) || !db.MemoryOnly() {
		t.Errorf("memory only: %v, %v", db.MemoryOnly(), err)
	}
	if code, since, _ := db.Problem(); code != CodeLocked || since.IsZero() {
		t.Errorf("problem %q since %v", code, since)
	}
	lines := strings.Join(log.take(), "\n")
	locks, _ := os.ReadFile("/proc/locks")
	listed := strings.Contains(string(locks), fmt.Sprintf(" %d ", pid))
	if !strings.Contains(lines, "Waiting for the process") || listed && !strings.Contains(lines, fmt.Sprint("locked by process ", pid)) {
		t.Errorf("the log has %s", lines)
	}
	release()
	put(t, db, "key", "value")
	flush(t, db)
	if !db.MemoryOnly() {
		t.Error("it has taken the file")
	}
	close1(t, db)
	db = openSound(t, path, manual)
	if v, _ := get(t, db, "key"); v != "held" {
		t.Errorf("the file has %q", v)
	}
}

// TestWhoeverWaitsForALock ends with the context, or does not wait at all.
func TestWhoeverWaitsForALock(t *testing.T) {
	path := testsupport.Path(t)
	_, release := holdFile(t, path)
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if db, err := Open(ctx, path, Options{Logger: &testsupport.Quiet}); !errors.Is(err, context.DeadlineExceeded) || db != nil {
		t.Errorf("Open returned %v", err)
	}
	db := open(t, path, Options{LockTimeout: -1})
	if !db.MemoryOnly() {
		t.Error("it has the file")
	}
}

// TestTwoDBsOfOneProcess (S4): the second one is an error, until the first is closed.
func TestTwoDBsOfOneProcess(t *testing.T) {
	path := testsupport.Path(t)
	var wg sync.WaitGroup
	errs, dbs := make([]error, 8), make([]*DB, 8)
	for i := range dbs {
		wg.Go(func() { dbs[i], errs[i] = Open(t.Context(), path, Options{Logger: &testsupport.Quiet}) })
	}
	wg.Wait()
	with := 0
	for i, db := range dbs {
		if db == nil {
			if !errors.Is(errs[i], ErrInUse) {
				t.Error(errs[i])
			}
			continue
		}
		with++
		close1(t, db)
	}
	if with != 1 {
		t.Errorf("%d have the file, expected 1", with)
	}
	openSound(t, path, manual)
}

// TestAKeyThatNobodyHasWrittenIsFound in a small bucket, which bbolt keeps within the page of another one.
func TestAKeyThatNobodyHasWrittenIsFound(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	put(t, db, "some key", "value")
	close1(t, db)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, strings.ReplaceAll(string(b), "ksome key", "{some key"))
	if db := openSound(t, path, manual); len(db.SetAside()) != 1 {
		t.Error("the file is used")
	}
}
