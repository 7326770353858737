//go:build unix

package persist

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// crashWorkload makes the same batches from the same seed, in the process that
// is killed and in the one that looks at what is left. Every batch writes its
// number.
type crashWorkload struct {
	m *model
	n int
}

func newCrashWorkload(seed int64) *crashWorkload {
	return &crashWorkload{m: newModel(rand.New(rand.NewSource(seed)))}
}

func (w *crashWorkload) batch() func(*Batch) {
	w.n++
	n, more := strconv.Itoa(w.n), w.m.batch()
	return func(b *Batch) {
		b.Put(Bucket{"number", "first"}, "n", []byte(n))
		more(b)
		b.Put(Bucket{"number", "last"}, "n", []byte(n))
	}
}

func init() {
	// crash writes to a file until it is killed, and prints what is durable.
	programs["crash"] = func(args []string) error {
		seed, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return err
		}
		db, err := Open(context.Background(), args[0], Options{CommitInterval: time.Millisecond, MaxPendingBytes: 40_000, Logger: &testsupport.Quiet})
		if err != nil {
			return err
		}
		go func() {
			for {
				committed := db.Committed()
				fmt.Println(db.Durable())
				<-committed
			}
		}()
		for w := newCrashWorkload(seed); ; {
			db.WaitForRoom()
			if err := db.Update(w.batch()); err != nil {
				return err
			}
			if w.n%37 == 0 {
				if err := db.Flush(); err != nil {
					return err
				}
			}
		}
	}
}

// A victim is a process that runs the program crash.
type victim struct {
	t       *testing.T
	path    string
	pid     int
	durable atomic.Uint64 // What it has said.
}

func startVictim(t *testing.T, seed int64) *victim {
	t.Helper()
	v := &victim{t: t, path: testsupport.Path(t)}
	cmd := testsupport.Program(t, "crash", v.path, strconv.FormatInt(seed, 10))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	v.pid = cmd.Process.Pid
	first, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			n, err := strconv.ParseUint(lines.Text(), 10, 64)
			if err != nil {
				t.Errorf("the process says %q", lines.Text())
				return
			}
			if v.durable.Swap(n) == 0 && n > 0 {
				close(first)
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait()
	})
	<-first
	return v
}

// image stops the process for a moment, and returns the file as it is then:
// what a kill would leave.
func (v *victim) image() (b []byte, durable uint64) {
	v.t.Helper()
	durable = v.durable.Load()
	if err := syscall.Kill(v.pid, syscall.SIGSTOP); err != nil {
		v.t.Fatal(err)
	}
	var status syscall.WaitStatus
	for !status.Stopped() {
		if _, err := syscall.Wait4(v.pid, &status, syscall.WUNTRACED, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			v.t.Fatal(err)
		}
		if status.Exited() || status.Signaled() {
			v.t.Fatalf("the process has ended: %v", status)
		}
	}
	b = testsupport.ReadUsed(v.t, v.path)
	if err := syscall.Kill(v.pid, syscall.SIGCONT); err != nil {
		v.t.Fatal(err)
	}
	return b, durable
}

// TestAKilledProcessLeavesAPrefixOfItsBatches is A1 and S1: every batch is
// there as a whole or not at all, all before it are there too, and so are those
// that were said to be durable.
func TestAKilledProcessLeavesAPrefixOfItsBatches(t *testing.T) { // S1
	rnd := testsupport.Rand(t)
	seed := rnd.Int63()
	v := startVictim(t, seed)
	check := &prefixChecker{t: t, dir: t.TempDir(), w: newCrashWorkload(seed)}
	last := 0
	for i := range rounds(120, 40, 12) {
		// Somewhere in the time that a commit takes.
		pause := time.NewTimer(time.Duration(rnd.Intn(4000)) * time.Microsecond)
		<-pause.C
		b, durable := v.image()
		n := check.check(fmt.Sprintf("crash %d", i), b)
		if n < last || uint64(n) < durable {
			t.Fatalf("crash %d: the file has batches up to %d, and had %d before; durable were %d", i, n, last, durable)
		}
		last = n
		check.w.m.forget(uint64(n))
	}
	t.Logf("%d batches", last)
}

type prefixChecker struct {
	t   *testing.T
	dir string
	w   *crashWorkload
}

// check opens an image and returns the number of the last batch in it.
func (c *prefixChecker) check(name string, image []byte) int {
	c.t.Helper()
	path := filepath.Join(c.dir, "crash.db")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		c.t.Fatal(err)
	}
	db, err := Open(c.t.Context(), path, Options{CommitInterval: time.Hour, Logger: &testsupport.Quiet})
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			c.t.Errorf("%s: %v", name, err)
		}
	}()
	if err := db.Err(); err != nil || len(setAside(c.t, path)) != 0 {
		c.t.Fatalf("%s: %v, set aside: %v", name, err, setAside(c.t, path))
	}
	var ns []int
	for _, bucket := range []string{"first", "last"} {
		v, _, err := lookup(db, Bucket{"number", bucket}, "n")
		if err != nil {
			c.t.Fatalf("%s: %v", name, err)
		}
		n, _ := strconv.Atoi(v)
		ns = append(ns, n)
	}
	if ns[0] != ns[1] {
		c.t.Fatalf("%s: half of batch %d", name, ns[0])
	}
	for c.w.n < ns[0] {
		c.w.batch()
	}
	s := snapshot(c.t, db, false)
	got, err := read(s)
	s.Close()
	if err != nil {
		c.t.Fatalf("%s: %v", name, err)
	}
	if diff := cmp.Diff(c.w.m.at(uint64(ns[0])), got); diff != "" {
		c.t.Fatalf("%s: not what batch %d left: -want +got:\n%.1000s", name, ns[0], diff)
	}
	err = db.bolt.View(func(tx *bolt.Tx) error {
		var errs []error
		for err := range tx.Check() {
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	if err != nil {
		c.t.Fatalf("%s: %v", name, err)
	}
	// The file goes on where it is.
	put(c.t, db, "after", "the crash")
	flush(c.t, db)
	return ns[0]
}

// TestAPowerFailureLeavesAPrefixOfItsBatches: of the pages that the last commit
// wrote, any may be on the disk and any not, before it has been synced. The
// meta page comes after a sync of its own, and may be torn.
func TestAPowerFailureLeavesAPrefixOfItsBatches(t *testing.T) { // S1
	rnd := testsupport.Rand(t)
	seed := rnd.Int63()
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	w := newCrashWorkload(seed)
	check := &prefixChecker{t: t, dir: t.TempDir(), w: newCrashWorkload(seed)}
	size := PageBytes
	before := testsupport.ReadUsed(t, path)
	for commit := range 1 + rounds(120, 40, 12)/8 {
		n := w.n
		for range 1 + rnd.Intn(12) {
			apply(t, db, w.batch())
		}
		flush(t, db)
		after := testsupport.ReadUsed(t, path)
		old := append(slices.Clone(before), make([]byte, len(after)-len(before))...)
		var data []int
		meta := -1
		for id := range len(after) / size {
			switch {
			case bytes.Equal(old[id*size:(id+1)*size], after[id*size:(id+1)*size]):
			case id < 2:
				meta = id
			default:
				data = append(data, id)
			}
		}
		if meta < 0 || meta != int(binary.NativeEndian.Uint64(after[meta*size+metaOffset+metaTxIDAt:])%2) {
			t.Fatalf("commit %d: meta page %d", commit, meta)
		}
		torn := slices.Clone(old)
		for i := range 4 {
			var lost []string
			for _, id := range data {
				from, to := id*size, (id+1)*size
				switch rnd.Intn(3) {
				case 0: // Not written.
					copy(torn[from:to], old[from:to])
					lost = append(lost, strconv.Itoa(id))
				case 1: // A part of it.
					cut := from + 512*rnd.Intn(size/512)
					copy(torn[from:cut], after[from:cut])
					copy(torn[cut:to], old[cut:to])
				default:
					copy(torn[from:to], after[from:to])
				}
			}
			name := fmt.Sprintf("commit %d, %d, without pages %s", commit, i, strings.Join(lost, " "))
			if got := check.check(name, torn); got != n {
				t.Fatalf("%s: has batches up to %d, expected %d", name, got, n)
			}
		}
		for _, cut := range []int{0, 16, 17, 40, 64, 72, 79, 80, 512, size} {
			copy(torn, after)
			copy(torn[meta*size:(meta+1)*size], old[meta*size:])
			copy(torn[meta*size:meta*size+cut], after[meta*size:])
			name := fmt.Sprintf("commit %d, %d bytes of meta page %d", commit, cut, meta)
			if got := check.check(name, torn); got != n && got != w.n || (cut == size && got != w.n) {
				t.Fatalf("%s: has batches up to %d, expected %d or %d", name, got, n, w.n)
			}
		}
		before = after
	}
}
