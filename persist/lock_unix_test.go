//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package persist

import (
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestALockCountsOnlyWherePathNamesTheFile (P5): whoever has waited for the lock may have got that of a file which was
// replaced meanwhile. Here path never names the file that is opened, because it is a link.
func TestALockCountsOnlyWherePathNamesTheFile(t *testing.T) {
	file, link := testsupport.Path(t), testsupport.Path(t)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{file: nil, link: ErrLocked} {
		f, err := lockFile(path, 0)
		if !errors.Is(err, want) {
			t.Errorf("locking %s: %v, expected %v", path, err, want)
		}
		if f != nil {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestALockThatIsNotWaitedFor: a timeout of zero is one attempt.
func TestALockThatIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		openSound(t, path, manual)
		begin := time.Now()
		if _, err := lockFile(path, 0); !errors.Is(err, ErrLocked) {
			t.Errorf("error %v, expected %v", err, ErrLocked)
		}
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("waited for %v", waited)
		}
	})
}
