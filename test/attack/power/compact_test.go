//go:build linux && (amd64 || arm64)

package power

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/test/attack/check"
	"github.com/warmwatch/warmwatch/test/attack/recordfs"
)

// compactEnv names the file that a copy of the test binary compacts.
const compactEnv = "WARMWATCH_POWER_COMPACT"

// Of compactKeys values one of 10 is left.
const compactKeys = 3000

// compact makes a file of which most is free, compacts it, changes what is left, and says what is durable.
func compact(path string) error {
	db, err := openQuietly(path)
	if err != nil {
		return err
	}
	write := func(db *persist.DB, what string, write func(b *persist.Batch, i int)) error {
		err := db.Update(func(b *persist.Batch) {
			for i := range compactKeys {
				write(b, i)
			}
		})
		return errors.Join(err, db.Flush(), mark(path, what))
	}
	put := func(value string, step int) func(*persist.Batch, int) {
		return func(b *persist.Batch, i int) {
			if i%step == 0 {
				b.Put(fsyncBucket, fsyncKey(i), []byte(value+strings.Repeat("v", 100)))
			}
		}
	}
	err = errors.Join(write(db, "all", put("old", 1)), write(db, "old", func(b *persist.Batch, i int) {
		if i%10 != 0 {
			b.Delete(fsyncBucket, fsyncKey(i))
		}
	}), db.Close())
	if err != nil {
		return err
	}
	before, after, err := persist.Compact(context.Background(), path, persist.Options{MaxPendingBytes: 20_000, Logger: &quiet})
	if err != nil || after > before/2 {
		return fmt.Errorf("%d to %d bytes, %w", before, after, err)
	}
	if db, err = openQuietly(path); err != nil {
		return err
	}
	return errors.Join(write(db, "new", put("new", 10)), db.Close())
}

// TestAPowerCutDuringACompactionLosesNothing: at any moment the file is the old one or the new one, complete (S1).
func TestAPowerCutDuringACompactionLosesNothing(t *testing.T) {
	if err := recordfs.Available(); err != nil {
		t.Skip(err)
	}
	f, err := recordfs.Mount(check.FastDir(t), check.FastDir(t), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), compactEnv+"="+filepath.Join(f.Dir, "cache.db"))
	said, err := cmd.CombinedOutput()
	if err := errors.Join(err, f.Unmount()); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	rng, disk := rand.New(rand.NewPCG(1, 3)), recordfs.NewDisk()
	durable, images := "", map[string]int{}
	for at, o := range f.Log() {
		disk.Apply(o)
		if o.Kind == recordfs.Mark {
			durable = string(o.Data)
		}
		for range 3 {
			if durable != "old" && durable != "new" {
				break
			}
			dir := check.FastDir(t)
			how, err := disk.Cut(rng, dir)
			if err != nil {
				t.Fatal(err)
			}
			has, err := compacted(filepath.Join(dir, "cache.db"))
			if err != nil || has != durable && durable == "new" {
				t.Fatalf("cut behind operation %d, %s (%s): it has %s values, durable were %s: %v", at, o, how, has, durable, err)
			}
			images[has]++
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("images: %v", images)
	if images["old"] < 100 || images["new"] == 0 {
		t.Error("the test did not reach what it is for")
	}
}

// compacted opens a file and says which values it has.
func compacted(path string) (has string, err error) {
	db, err := openQuietly(path)
	if err != nil {
		return "", err
	}
	n := 0
	_, _, problem := db.Problem()
	err = errors.Join(problem, db.Read(fsyncBucket.Space, func(s *persist.Snapshot) error {
		return s.Scan(fsyncBucket.Name, "", func(it *persist.Item) (bool, error) {
			value, err := it.Payload()
			if err != nil || it.Key != fsyncKey(n*10) || n > 0 && string(value[:3]) != has {
				return false, fmt.Errorf("key %s has %.10s, %w", it.Key, value, err)
			}
			has, n = string(value[:3]), n+1
			return true, nil
		})
	}), db.Close())
	if n != compactKeys/10 && err == nil {
		err = fmt.Errorf("%d keys, set aside: %v", n, db.SetAside())
	}
	return has, err
}
