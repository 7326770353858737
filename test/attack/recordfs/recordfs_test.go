//go:build linux && (amd64 || arm64)

package recordfs_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/test/attack/recordfs"
)

// mapEnv makes the test binary a program that maps a file.
const mapEnv = "RECORDFS_TEST_MAP"

func TestMain(m *testing.M) {
	if path := os.Getenv(mapEnv); path != "" {
		if err := writeMapped(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// writeMapped writes to a file while it has it mapped, as bbolt does, and prints
// what it sees: before a write, after it, and after one that fails.
func writeMapped(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := f.Truncate(8192); err != nil {
		return err
	}
	mapped, err := syscall.Mmap(int(f.Fd()), 0, 8192, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	read := make([]byte, 4)
	for _, data := range []string{"1111", "2222", "3333"} {
		seen := string(mapped[4096:4100])
		_, err := f.WriteAt([]byte(data), 4096)
		after := string(mapped[4096:4100]) // Before a read may put it right.
		if _, err := f.ReadAt(read, 4096); err != nil {
			return err
		}
		fmt.Printf("%q %q %q %v\n", seen, after, read, err)
	}
	return nil
}

func TestAMappedFileShowsWhatWasWrittenAndNotWhatFailed(t *testing.T) {
	writes := 0
	f := mount(t, func(_ int, k recordfs.Kind, _ string) recordfs.Verdict {
		if k == recordfs.Write {
			if writes++; writes == 2 {
				return recordfs.Verdict{Errno: syscall.EIO}
			}
		}
		return recordfs.Verdict{}
	})
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(f.Dir, "a")
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), mapEnv+"="+path)
	out, err := cmd.CombinedOutput()
	want := strings.ReplaceAll(`"\x00\x00\x00\x00" "1111" "1111" <nil>
"1111" "1111" "1111" write PATH: input/output error
"1111" "3333" "3333" <nil>
`, "PATH", path)
	if diff := cmp.Diff(want, string(out)); err != nil || diff != "" {
		t.Errorf("%v: what a program saw of its writes (-want +got):\n%s", err, diff)
	}
}

func mount(t *testing.T, judge recordfs.Judge) *recordfs.FS {
	t.Helper()
	if err := recordfs.Available(); err != nil {
		t.Skip(err)
	}
	f, err := recordfs.Mount(t.TempDir(), t.TempDir(), 0, judge)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// shell runs a script in the mounted directory, in another process.
func shell(t *testing.T, f *recordfs.FS, script string) (out string, err error) {
	t.Helper()
	// Not by cmd.Dir: the runtime waits for a child that has not begun its program
	// yet, and nobody would serve it.
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "cd '"+f.Dir+"' && { "+script+"; }")
	b, err := cmd.CombinedOutput()
	return string(b), err
}

func TestTheLogHasEveryChangeInOrder(t *testing.T) {
	f := mount(t, nil)
	script := `mkdir d && printf 123 >d/a && printf one >.marks && sync d/a && sync d && ln d/a d/b && mv d/b d/c && rm d/a && printf two >.marks && truncate -s 9 d/c && cat d/c | od -An -c`
	out, err := shell(t, f, script)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, want := strings.Join(strings.Fields(out), ""), `123\0\0\0\0\0\0`; got != want {
		t.Errorf("the file reads as %s, expected %s", got, want)
	}
	var got []string
	for _, o := range f.Log() {
		got = append(got, o.String())
	}
	want := []string{
		"mkdir 2 d", "create 3 a", "write 3 @0+3", "mark one", "fsync 3 ", "fsyncdir 2 ", "link 3 b", "rename 3 b to c", "unlink 3 a", "mark two", "truncate 3 to 9",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
	b, err := os.ReadFile(filepath.Join(f.Backing, "d/c"))
	if err != nil || string(b) != "123\x00\x00\x00\x00\x00\x00" {
		t.Errorf("the directory behind has %q, %v", b, err)
	}
}

func TestTheNthOperationFailsAndNothingElse(t *testing.T) {
	// create a, write 1, create b, write 2.
	for n, want := range []string{"a:1 b:2", "b:2", "a: b:2", "a:1", "a:1 b:", "a:1 b:2"} {
		f := mount(t, func(i int, _ recordfs.Kind, _ string) recordfs.Verdict {
			if i == n {
				return recordfs.Verdict{Errno: syscall.ENOSPC}
			}
			return recordfs.Verdict{}
		})
		out, err := shell(t, f, "printf 1 >a; printf 2 >b")
		if failed := strings.Contains(out, "No space left") || strings.Contains(out, "I/O error"); failed != (n == 1 || n == 2 || n == 3 || n == 4) {
			t.Errorf("operation %d: %v: %s", n, err, out)
		}
		if got := contents(t, f.Backing); got != want {
			t.Errorf("with operation %d failing there is %q, expected %q", n, got, want)
		}
	}
}

func TestNothingHappensBehindADeath(t *testing.T) {
	f := mount(t, func(_ int, k recordfs.Kind, _ string) recordfs.Verdict {
		return recordfs.Verdict{Dead: k == recordfs.Write, Part: true}
	})
	if out, err := shell(t, f, "printf 1234 >a || printf 5 >b || printf x >.marks"); err == nil {
		t.Errorf("the shell did not notice: %s", out)
	}
	if got := contents(t, f.Backing); got != "a:12" {
		t.Errorf("there is %q", got)
	}
}

func contents(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		if e.IsDir() {
			all = append(all, e.Name()+"/"+contents(t, filepath.Join(dir, e.Name())))
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s:%s", e.Name(), b))
	}
	return strings.Join(all, " ")
}

// cuts are the images that many power cuts may leave.
func cuts(t *testing.T, ops []recordfs.Op) map[string]bool {
	t.Helper()
	d := recordfs.NewDisk()
	d.Apply(ops...)
	got := map[string]bool{}
	for seed := range uint64(100) {
		dir := t.TempDir()
		if _, err := d.Cut(rand.New(rand.NewPCG(seed, 0)), dir); err != nil {
			t.Fatal(err)
		}
		got[contents(t, dir)] = true
	}
	return got
}

func TestOfWhatWasNotSyncedEachSubsetMayBeThere(t *testing.T) {
	const root, a, b = recordfs.RootID, 2, 3
	created := []recordfs.Op{{Kind: recordfs.Create, File: a, Dir: root, Name: "a"}}
	write := func(at int64, s string) recordfs.Op {
		return recordfs.Op{Kind: recordfs.Write, File: a, Offset: at, Data: []byte(s)}
	}
	fsync := recordfs.Op{Kind: recordfs.Fsync, File: a}
	fsyncDir := recordfs.Op{Kind: recordfs.FsyncDir, File: root}
	sector := strings.Repeat("x", 512)
	for name, c := range map[string]struct {
		ops  []recordfs.Op
		want []string
	}{
		"an entry without fsync of its directory": {
			append(created, write(0, "1"), fsync), []string{"", "a:1"},
		},
		"a write without fsync": {
			append(created, fsyncDir, write(0, "1")), []string{"a:", "a:\x00", "a:1"},
		},
		"an overwrite without fsync": {
			append(created, fsyncDir, write(0, "1"), fsync, write(0, "2")), []string{"a:1", "a:2"},
		},
		"a write of two sectors": {
			append(created, fsyncDir, write(0, sector+sector), fsync, write(0, strings.Repeat("y", 1024))),
			[]string{"a:" + sector + sector, "a:" + sector + strings.Repeat("y", 512), "a:" + strings.Repeat("y", 512) + sector, "a:" + strings.Repeat("y", 1024)},
		},
		"a replacement": {
			append(created, write(0, "1"), fsync, fsyncDir, recordfs.Op{Kind: recordfs.Create, File: b, Dir: root, Name: "b"}, fsyncDir,
				recordfs.Op{Kind: recordfs.Rename, File: b, Dir: root, Name: "b", ToDir: root, ToName: "a"}),
			[]string{"a:1 b:", "a:"},
		},
		"a file that is set aside before its replacement is there": {
			append(created, write(0, "1"), fsync, fsyncDir,
				recordfs.Op{Kind: recordfs.Rename, File: a, Dir: root, Name: "a", ToDir: root, ToName: "c"},
				recordfs.Op{Kind: recordfs.Create, File: b, Dir: root, Name: "a"}),
			[]string{"a:1", "c:1", "a: c:1", "a:"},
		},
		"all is synced": {append(created, write(0, "1"), fsync, fsyncDir), []string{"a:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			want := map[string]bool{}
			for _, w := range c.want {
				want[w] = true
			}
			if diff := cmp.Diff(want, cuts(t, c.ops)); diff != "" {
				t.Errorf("what a power cut may leave (-want +got):\n%s", diff)
			}
		})
	}
}
