package check

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
)

// A Life is a program that opens a file, uses it for some sessions, and has
// accidents. Its input is JSON.
type Life struct {
	// History is the seed of the server, Seed of what happens.
	History, Seed uint64
	// Path of the file; Behind is where it can be read without being noticed;
	// Marks is where marks are written to.
	Path, Behind, Marks string
	Sessions            int
	// Damage the file in one of the sessions, while it is in use.
	Damage bool
	// Errors are to be expected, of Close too.
	Errors bool
	// World is where it begins.
	World *World
}

// RunLife is the program, for [Main]: it reads its Life from standard input.
func RunLife(t *testing.T) {
	var l Life
	if err := json.NewDecoder(os.Stdin).Decode(&l); err != nil {
		t.Fatal(err)
	}
	marks, err := os.OpenFile(l.Marks, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer marks.Close()
	synctest.Test(t, func(*testing.T) {
		m := NewMarker(l.World, marks)
		l.run(m)
		m.Mark(Mark{Kind: Finished})
	})
}

func (l *Life) run(m *Marker) {
	rng := rand.New(rand.NewPCG(l.Seed, 3))
	s := NewServer(l.History, l.World.Version)
	if l.World.Version == 0 {
		Advance(s, m, 2*names)
	}
	damageIn := rng.IntN(l.Sessions)
	for i := range l.Sessions {
		Advance(s, m, rng.IntN(8))
		if rng.IntN(3) == 0 {
			Compact(s, m)
		}
		b, err := Begin(s, m, Options{
			Path: l.Path, Behind: l.Behind, Slow: time.Duration(max(0, rng.IntN(300)-200)) * time.Millisecond,
			Cache: warmwatch.Options{
				CommitInterval: time.Duration(1+rng.IntN(1000)) * time.Millisecond,
				MemoryBudget:   int64(rng.IntN(3)-1) * 10_000,
			},
		})
		if err != nil {
			m.Violation("open: %v", err)
			return
		}
		l.disturb(rng, b)
		if rng.IntN(2) == 0 {
			l.join(rng, b, fmt.Sprintf("walker-%d-%d", l.Seed, i))
		}
		if l.Damage && i == damageIn {
			l.damage(b)
		}
		if rng.IntN(2) == 0 || i == l.Sessions-1 {
			b.Quiet()
		}
		end := b.Stop
		if rng.IntN(3) == 0 {
			end = b.Abandon
		}
		if err := end(); err != nil && !l.Errors {
			m.Violation("close: %v", err)
		}
	}
}

// disturb lets a while pass, with changes and accidents on the server's side.
func (l *Life) disturb(rng *rand.Rand, b *Session) {
	for range 5 + rng.IntN(12) {
		switch rng.IntN(14) {
		case 0:
			b.Server.Disconnect()
		case 1:
			Compact(b.Server, b.Marker)
			b.Server.Disconnect()
		case 2:
			b.Server.Bookmark()
		case 3:
			b.Server.FailPages(rng.IntN(3))
		case 4, 5:
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond) // Of the bubble.
		case 6:
			b.Server.SetDown(errors.New("dial tcp: connect: no route to host"))
			time.Sleep(time.Duration(rng.IntN(5)) * time.Second)
			b.Server.SetDown(nil)
		default:
			b.Advance(1 + rng.IntN(5))
			time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
		}
	}
}

// join has a durable handler be told of everything, while changes are committed.
func (l *Life) join(rng *rand.Rand, b *Session, name string) {
	joinAt := rng.IntN(10)
	for i := range 10 {
		b.Advance(1)
		if i == joinAt {
			if err := b.Join(name); err != nil && (!l.Errors || !b.Marker.World().MemoryOnly) {
				b.Marker.Violation("join: %v", err)
			}
		}
		time.Sleep(time.Duration(8+rng.IntN(8)) * time.Millisecond) // About warmwatch.Options.DurableDelay.
	}
}

// damage changes a page of the index in the file that is in use, as a bad disk
// does. The index follows from the objects, so nothing may be lost by it: not
// when the file is being replaced either.
func (l *Life) damage(b *Session) {
	b.Quiet() // No commit is under way, and none will be until something changes.
	if b.Marker.World().MemoryOnly {
		return
	}
	at, err := indexPage(l.Behind)
	if err != nil {
		b.Marker.Violation("damage: %v", err)
		return
	}
	b.Marker.Mark(Mark{Kind: Damaged})
	for range 100 { // It may be this operation that is to fail, or the disk is full.
		if err = overwrite(l.Path, at+pageCountAt, []byte{0xf0, 0xfe}); err == nil {
			break
		}
	}
	if err != nil {
		b.Marker.Violation("damage: %v", err)
		return
	}
	b.Advance(20) // So that there are writes to the index.
	b.Quiet()
	f, err := ReadFile(l.Behind, false)
	if err == nil && len(f.Problems) > 0 {
		err = errors.New(f.Problems[0])
	}
	if err != nil {
		b.Marker.Violation("the damage was not repaired: %v", err)
		return
	}
	b.Marker.Mark(Mark{Kind: Mended})
}

// Of bbolt's pages: how many elements one has, and where that is said.
const pageCountAt = 10

// indexPage finds a leaf of the index.
func indexPage(path string) (at int64, err error) {
	copied, err := copyFile(path)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(filepath.Dir(copied))
	db, err := bolt.Open(copied, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
			index := space.Bucket([]byte("index"))
			if index == nil || index.Root() == 0 {
				return nil
			}
			pageSize := int64(db.Info().PageSize)
			id := int64(index.Root())
			for {
				page := make([]byte, 64)
				if err := readAt(copied, page, id*pageSize); err != nil {
					return err
				}
				if binary.NativeEndian.Uint16(page[8:])&0x02 != 0 { // A leaf.
					at = id * pageSize
					return nil
				}
				id = int64(binary.NativeEndian.Uint64(page[16+8:])) // The first child.
			}
		})
	})
	if err == nil && at == 0 {
		err = errors.New("the index has no page of its own")
	}
	return at, err
}

func readAt(path string, b []byte, at int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.ReadAt(b, at)
	return err
}

func overwrite(path string, at int64, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, at)
	return errors.Join(err, f.Sync(), f.Close())
}

func copyFile(path string) (copied string, err error) {
	dir, err := os.MkdirTemp("", "attack")
	if err != nil {
		return "", err
	}
	from, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer from.Close()
	to, err := os.Create(filepath.Join(dir, "copy.db"))
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(to, from); err != nil {
		return "", fmt.Errorf("copy %s: %w", path, err)
	}
	return to.Name(), to.Close()
}
