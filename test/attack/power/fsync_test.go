//go:build linux && (amd64 || arm64)

package power

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/test/attack/check"
	"github.com/warmwatch/warmwatch/test/attack/recordfs"
)

// commitEnv names the file that a copy of the test binary commits to.
const commitEnv = "WARMWATCH_POWER_COMMIT"

const fsyncKeys = 200

var (
	fsyncBucket = persist.Bucket{Space: "space", Name: "bucket"}
	quiet       klog.Logger
)

func fsyncKey(i int) string { return fmt.Sprintf("%04d", i) }

func openQuietly(path string) (*persist.DB, error) {
	return persist.Open(context.Background(), path, persist.Options{CommitInterval: time.Hour, DurableDelay: time.Hour, Logger: &quiet})
}

// commitTwice makes values durable, says so, and changes some of them when it is told to. The
// first attempt of that may fail.
func commitTwice(path string) error {
	db, err := openQuietly(path)
	if err != nil {
		return err
	}
	put := func(step int, value string) error {
		err := db.Update(func(b *persist.Batch) {
			for i := 0; i < fsyncKeys; i += step {
				b.Put(fsyncBucket, fsyncKey(i), []byte(value+strings.Repeat("v", 500)))
			}
		})
		return err
	}
	if err := errors.Join(put(1, "old"), db.Flush(), put(50, "old again"), db.Flush()); err != nil {
		return err
	}
	if err := mark(path, "durable"); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	if err := put(10, "new"); err != nil {
		return err
	}
	if err := db.Flush(); err != nil {
		fmt.Println("failed:", err)
	}
	return errors.Join(db.Flush(), db.Close())
}

// mark says something in the log.
func mark(path, what string) error {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(path), recordfs.MarkFile), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(what)
	return errors.Join(err, f.Close())
}

// TestAPowerCutAfterAnFsyncHasFailedTakesBackNothingDurable: the fsync behind the meta page of
// a commit fails, and what it was to write is lost, although the kernel says that it is
// written. bbolt believes the page; the disk has the one before. The power is cut at any
// moment of the next attempt.
func TestAPowerCutAfterAnFsyncHasFailedTakesBackNothingDurable(t *testing.T) {
	if err := recordfs.Available(); err != nil {
		t.Skip(err)
	}
	var armed atomic.Bool
	var syncs atomic.Int64
	f, err := recordfs.Mount(check.FastDir(t), check.FastDir(t), 0, func(_ int, k recordfs.Kind, _ string) recordfs.Verdict {
		if armed.Load() && k == recordfs.Fsync && syncs.Add(1) == 2 {
			return recordfs.Verdict{Errno: syscall.EIO}
		}
		return recordfs.Verdict{}
	})
	if err != nil {
		t.Fatal(err)
	}
	log := recordCommits(t, f, &armed)
	if err := f.Unmount(); err != nil {
		t.Fatal(err)
	}
	from := 0
	for i, o := range log {
		if o.Kind == recordfs.Mark && string(o.Data) == "durable" {
			from = i
		}
	}
	for log[from].Kind != recordfs.Fsync { // That of the data; behind it comes the meta page.
		from++
	}
	failed := from + 2
	rng := rand.New(rand.NewPCG(1, 2))
	images := 0
	for cut := failed; cut <= len(log); cut++ {
		for range 5 {
			d := recordfs.NewDisk()
			d.Apply(log[:failed]...)
			d.GiveUp()
			d.Apply(log[failed:cut]...)
			dir := check.FastDir(t)
			how, err := d.Cut(rng, dir)
			if err != nil {
				t.Fatal(err)
			}
			images++
			if lost := lostValues(t, filepath.Join(dir, "cache.db")); lost > 0 {
				t.Fatalf("cut behind operation %d of the next attempt (%s): %d of %d durable values are lost", cut-failed, how, lost, fsyncKeys)
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d images", images)
}

// recordCommits runs commitTwice, and returns its log.
func recordCommits(t *testing.T, f *recordfs.FS, armed *atomic.Bool) []recordfs.Op {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), commitEnv+"="+filepath.Join(f.Dir, "cache.db"))
	cmd.Stderr = os.Stderr
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
	lines := bufio.NewReader(out)
	if s, err := lines.ReadString('\n'); s != "ready\n" {
		t.Fatalf("%q, %v", s, err)
	}
	armed.Store(true)
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(lines)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(rest), "failed:") {
		t.Fatalf("no commit has failed: %q", rest)
	}
	return f.Log()
}

func lostValues(t *testing.T, path string) (lost int) {
	t.Helper()
	db, err := openQuietly(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for i := range fsyncKeys {
		found, err := db.View(fsyncBucket, fsyncKey(i), func(it *persist.Item) error {
			_, err := it.Payload()
			return err
		})
		if !found || err != nil {
			lost++
		}
	}
	return lost
}
