package persist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// salvageable writes a file of two buckets. In one of them two keys will get out of
// order, which makes the file one that must be replaced, and can be read in part.
func salvageable(t testing.TB, db *DB) map[string]string {
	t.Helper()
	want := map[string]string{}
	for i := range 300 {
		key := fmt.Sprintf("%04d", i)
		want[key] = repeat(key, 50)
	}
	apply(t, db, func(b *Batch) {
		for key, v := range want {
			b.Put(testBucket, key, Bytes(v))
		}
		for _, key := range []string{"aaaa", "bbbb", "cccc"} {
			b.Put(Bucket{testBucket.Space, "disordered"}, key, Bytes("v"))
		}
	})
	flush(t, db)
	return want
}

// disorder damages what salvageable has written, in place.
func disorder(t testing.TB, path string) {
	t.Helper()
	b := testsupport.ReadUsed(t, path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for at := bytes.Index(b, []byte("bbbb")); at >= 0 && err == nil; at = bytes.Index(b, []byte("bbbb")) {
		copy(b[at:], "zzzz")
		_, err = f.WriteAt([]byte("zzzz"), int64(at)) // Needs no space on the disk.
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// meetDisorder has the DB read the keys that are out of order.
func meetDisorder(t testing.TB, db *DB) {
	t.Helper()
	s, err := db.Snapshot(testBucket.Space)
	if err == nil {
		err = s.Scan("disordered", "", func(*Item) (bool, error) { return true, nil })
		s.Close()
	}
	if !errors.Is(err, ErrCorrupt) {
		t.Fatalf("the damage was not found: %v", err)
	}
}

// TestASpaceOfWhichNothingCanBeReadIsMarked, because it was not empty.
func TestASpaceOfWhichNothingCanBeReadIsMarked(t *testing.T) {
	path := testsupport.Path(t)
	_, _, space := informerFile(t, path)
	overwrite(t, path, int64(space*PageBytes), make([]byte, PageBytes))
	db := open(t, path, manual)
	if len(setAside(t, path)) != 1 || !db.Salvaged(testBucket.Space) {
		t.Errorf("set aside: %v; salvaged: %v", setAside(t, path), db.Salvaged(testBucket.Space))
	}
}

// TestWhatCanBeReadOfADamagedFileIsSalvagedAtTheStart: a file that is found damaged
// when it is opened is not thrown away.
func TestWhatCanBeReadOfADamagedFileIsSalvagedAtTheStart(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, path string){
		"keys out of order": func(t *testing.T, path string) { disorder(t, path) },
		"the last page cut off": func(t *testing.T, path string) {
			if err := os.Truncate(path, int64(len(testsupport.ReadUsed(t, path))-1)); err != nil {
				t.Fatal(err)
			}
		},
		"a freelist of noise": func(t *testing.T, path string) {
			b := testsupport.ReadUsed(t, path)
			im := &image{pageSize: PageBytes, bytes: b}
			for _, id := range im.pagesOf(freelistPage) {
				b[id*PageBytes+pageFlagsAt] = 0x77
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a page that refers to itself": func(t *testing.T, path string) {
			b := testsupport.ReadUsed(t, path)
			im := &image{pageSize: PageBytes, bytes: b}
			for _, id := range im.pagesOf(branchPage) {
				b[id*PageBytes+pageHeaderBytes+branchPageIDAt] = byte(id)
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"branches that say they are shorter, and longer": func(t *testing.T, path string) {
			b := testsupport.ReadUsed(t, path)
			im := &image{pageSize: PageBytes, bytes: b}
			for i, id := range im.pagesOf(branchPage) {
				b[id*PageBytes+pageCountAt] = byte(1 + i%2)
				b[id*PageBytes+pageCountAt+1] = 0
				b[id*PageBytes+pageOverflowAt+1] = 0x77
			}
			for _, id := range im.pagesOf(leafPage) {
				b[id*PageBytes+pageOverflowAt+1] = 0x77
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			db := openSound(t, path, manual)
			want := salvageable(t, db)
			apply(t, db, func(b *Batch) {
				for i := range 3000 { // More than one transaction of the salvage, and branch pages.
					b.Put(Bucket{"other", "bucket"}, fmt.Sprintf("%05d", i), Bytes(repeat("x", 50)))
				}
			})
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			harm(t, path)
			db = openSound(t, path, manual)
			if len(setAside(t, path)) != 1 {
				t.Fatalf("set aside: %v", setAside(t, path))
			}
			got := contents(t, db)
			for key, v := range got {
				if v != want[key] {
					t.Errorf("key %s is %.20q", key, v)
				}
			}
			if len(got) < len(want)/2 {
				t.Errorf("%d of %d keys were salvaged", len(got), len(want))
			}
			if !db.Salvaged(testBucket.Space) || !db.Salvaged("other") {
				t.Error("nothing says that something may be missing")
			}
			if db.Salvaged("another") {
				t.Error("a space that was not there counts as salvaged")
			}
		})
	}
}

func init() {
	// salvage opens a damaged file, or damages one that it has open, and ends at the
	// n-th step of the replacement.
	programs["salvage"] = func(args []string) error {
		path, how := args[0], args[1]
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		crashpoint = func(string) error {
			if n--; n == 0 {
				os.Exit(9)
			}
			return nil
		}
		t := new(testing.T)
		db := open(t, path, manual)
		if how == "in use" {
			disorder(t, path)
			meetDisorder(t, db)
			put(t, db, "later", "value")
			flush(t, db)
		}
		if t.Failed() {
			return errors.New("the scenario failed")
		}
		return db.Close()
	}
}

// TestACrashDuringASalvageLosesNothing: whenever it comes, the next process finds
// the damaged file, or its whole successor.
func TestACrashDuringASalvageLosesNothing(t *testing.T) {
	for _, how := range []string{"at the start", "in use"} {
		t.Run(how, func(t *testing.T) {
			for n, crashed := 1, true; crashed; n++ {
				path := testsupport.Path(t)
				db := openSound(t, path, manual)
				want := salvageable(t, db)
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				if how == "at the start" {
					disorder(t, path)
				}
				cmd := testsupport.Program(t, "salvage", path, how, strconv.Itoa(n))
				out, err := cmd.CombinedOutput()
				crashed = cmd.ProcessState.ExitCode() == 9
				if !crashed && err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				if !crashed && n < 4 {
					t.Errorf("%d steps", n-1)
				}
				db = openSound(t, path, manual)
				got := contents(t, db)
				delete(got, "later")
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("a crash at step %d: -want +got:\n%.1000s", n, diff)
				}
				if !db.Salvaged(testBucket.Space) {
					t.Errorf("a crash at step %d: nothing says that something may be missing", n)
				}
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				left, err := filepath.Glob(path + "*")
				if err != nil {
					t.Fatal(err)
				}
				left = slices.DeleteFunc(left, func(name string) bool {
					return name == path || strings.HasPrefix(name, path+corruptSuffix) || strings.HasPrefix(name, path+newSuffix)
				})
				if len(left) != 0 {
					t.Errorf("a crash at step %d left %v", n, left)
				}
			}
		})
	}
}

// TestAReplacementThatFailsIsTriedAgain at each of its steps.
func TestAReplacementThatFailsIsTriedAgain(t *testing.T) {
	defer func(before func(string) error) { crashpoint = before }(crashpoint)
	injected := errors.New("injected")
	for n, hit := 1, true; hit; n++ {
		synctest.Test(t, func(t *testing.T) {
			path := testsupport.Path(t)
			db := openSound(t, path, Options{CommitInterval: time.Second})
			resets := 0
			db.AddHook(&Hook{Space: testBucket.Space, AfterReset: func(error) { resets++ }})
			want := salvageable(t, db)
			disorder(t, path)
			left := n
			hit = false
			crashpoint = func(string) error {
				if left--; left == 0 {
					hit = true
					return injected
				}
				return nil
			}
			meetDisorder(t, db)
			put(t, db, "later", "value")
			want["later"] = "value"
			synctest.Wait()
			if hit {
				if err := db.Err(); !errors.Is(err, injected) || db.MemoryOnly() || db.Durable() == db.Applied() {
					t.Errorf("step %d: %v, memory only: %v, durable: %d of %d", n, err, db.MemoryOnly(), db.Durable(), db.Applied())
				}
				if diff := cmp.Diff(want, contents(t, db)); diff != "" {
					t.Errorf("step %d, before the next attempt: -want +got:\n%.1000s", n, diff)
				}
				if !db.Salvaged(testBucket.Space) {
					t.Errorf("step %d: nothing says that something may be missing", n)
				}
			}
			after(minReplaceDelay + 2*time.Second)
			if err := db.Err(); err != nil || resets != 1 {
				t.Errorf("step %d: %v, %d resets", n, err, resets)
			}
			wantDurable(t, db, db.Applied())
			if diff := cmp.Diff(want, contents(t, db)); diff != "" {
				t.Errorf("step %d: -want +got:\n%.1000s", n, diff)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, contents(t, openSound(t, path, manual))); diff != "" {
				t.Errorf("step %d, after a restart: -want +got:\n%.1000s", n, diff)
			}
			if n := len(setAside(t, path)); n != 1 {
				t.Errorf("step %d: %d files set aside", n, n)
			}
		})
	}
}

// TestAReaderThatFindsDamageReadsFromTheNewFile a moment later, and gets no error.
func TestAReaderThatFindsDamageReadsFromTheNewFile(t *testing.T) {
	for name, read := range map[string]func(db *DB) (string, error){
		"View": func(db *DB) (string, error) {
			v, _, err := lookup(db, testBucket, "key")
			return v, err
		},
		"Read": func(db *DB) (v string, err error) {
			err = db.Read(testBucket.Space, func(s *Snapshot) error {
				v = "" // What was found before does not count.
				return s.Scan(testBucket.Name, "", func(it *Item) (bool, error) {
					payload, err := it.Payload()
					v += string(payload)
					return true, err
				})
			})
			return v, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			db := openSound(t, path, manual)
			put(t, db, "key", "value")
			flush(t, db)
			sound := db.bolt.checkMeta
			db.bolt.checkMeta = func() error {
				db.bolt.checkMeta = sound
				return &CorruptError{Err: errors.New("input/output error")}
			}
			if v, err := read(db); v != "value" || err != nil {
				t.Errorf("read %q, %v", v, err)
			}
			if len(setAside(t, path)) != 1 {
				t.Error("the file was not replaced")
			}
		})
	}
}

// failsOnce is a file whose nth read fails, and no other.
type failsOnce struct {
	*os.File
	n, reads int
}

func (f *failsOnce) ReadAt(b []byte, at int64) (int, error) {
	if f.reads++; f.reads == f.n {
		return 0, syscall.EIO
	}
	return f.File.ReadAt(b, at)
}

// TestAReadThatFailsOnceCostsNothing: salvage would lose all that it cannot read.
func TestAReadThatFailsOnceCostsNothing(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	want := salvageable(t, db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for n, failed := 1, true; failed; n++ {
		file, found := &failsOnce{File: f, n: n}, 0
		lost, err := forEachReadable(file, nil, func(name Bucket, _, _ []byte) error {
			if name == testBucket {
				found++
			}
			return nil
		})
		if lost != nil || err != nil || found != len(want) {
			t.Fatalf("read %d fails: found %d of %d, lost %v, error %v", n, found, len(want), lost, err)
		}
		if failed = file.reads >= n; failed && n == 1 {
			t.Logf("%d reads", file.reads)
		}
	}
}

// TestADamagedWordDoesNotChangeHowManyElementsAPageHas: salvage would take what lies behind
// the page for elements of it, or leave elements out.
func TestADamagedWordDoesNotChangeHowManyElementsAPageHas(t *testing.T) {
	for _, flags := range []uint16{leafPage, branchPage} {
		for n := 1; n <= 40; n++ {
			sound := pageOf(flags, n)
			for bit := pageCountAt * 8; bit < (pageHeaderBytes+2*elementBytes)*8; bit++ {
				page := slices.Clone(sound)
				page[bit/8] ^= 1 << (bit % 8)
				p := salvagePage{flags: flags, bytes: page}
				p.setCount(page)
				if p.count > n || p.count < n && n > 1 {
					t.Errorf("flags %d, bit %d of byte %d: %d elements, expected %d", flags, bit%8, bit/8, p.count, n)
				}
			}
		}
	}
}

// pageOf is a page with n elements as bbolt writes it.
func pageOf(flags uint16, n int) []byte {
	page := make([]byte, pageHeaderBytes+n*elementBytes)
	binary.NativeEndian.PutUint16(page[pageFlagsAt:], flags)
	binary.NativeEndian.PutUint16(page[pageCountAt:], uint16(n))
	for i := range n {
		at := pageHeaderBytes + i*elementBytes
		key, value := fmt.Appendf(nil, "key-%d", i), repeat("v", 3*i)
		if flags == branchPage {
			value = ""
		} else {
			binary.NativeEndian.PutUint32(page[at+12:], uint32(len(value)))
			at += 4
		}
		binary.NativeEndian.PutUint32(page[at:], uint32(len(page)-(pageHeaderBytes+i*elementBytes)))
		binary.NativeEndian.PutUint32(page[at+4:], uint32(len(key)))
		page = append(append(page, key...), value...)
	}
	return append(page, make([]byte, PageBytes)...)
}
