package persist

import (
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestWhatCannotBeWrittenCountsAsDurableAfterTheGrace, and is written once it can be.
func TestWhatCannotBeWrittenCountsAsDurableAfterTheGrace(t *testing.T) {
	for name, c := range map[string]struct {
		fail  func(*DB) (end func())
		delay time.Duration // Until a later change counts.
	}{
		"the disk is full": {func(db *DB) func() {
			fill(db, true)
			return func() { fill(db, false) }
		}, 10 * time.Millisecond},
		"the disk does not answer": {func(db *DB) func() {
			release := make(chan struct{})
			if _, err := db.Update(func(b *Batch) { b.Put(Bucket{"another", "b"}, "stuck", stuck(release)) }); err != nil {
				t.Fatal(err)
			}
			return func() { close(release) }
		}, hangingHooks},
	} {
		for grace, want := range map[time.Duration]bool{0: false, time.Minute: true} {
			t.Run(name+", "+grace.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					path := testsupport.Path(t)
					db := openSound(t, path, Options{CommitInterval: time.Second, DurableGrace: grace})
					var heard atomic.Uint64
					defer db.AddHook(&Hook{AfterCommit: func(n uint64) { heard.Store(max(heard.Load(), n)) }})()
					expect := func(want bool) {
						t.Helper()
						if got := db.Durable() == db.Applied() && heard.Load() == db.Applied(); got != want {
							t.Errorf("durable up to %d, heard of %d, applied %d", db.Durable(), heard.Load(), db.Applied())
						}
						if want {
							s := snapshot(t, db, true)
							defer s.Close()
							if got, err := scan(s, testBucket.Name, "a"); got["a"] != "now" || err != nil {
								t.Errorf("a durable snapshot has %v, %v", got["a"], err)
							}
						}
					}
					end := c.fail(db)
					put(t, db, "big", repeat("x", 8<<20))
					put(t, db, "a", "then")
					after(59 * time.Second)
					expect(false)
					put(t, db, "a", "now")
					after(2 * time.Second)
					expect(want)
					after(5 * time.Minute)
					if _, err := db.Update(func(b *Batch) { b.Urgent() }); err != nil {
						t.Fatal(err)
					}
					after(c.delay + time.Millisecond)
					expect(want)
					end()
					after(maxRetryDelay + time.Second)
					if err := db.Err(); err != nil {
						t.Error(err)
					}
					expect(true)
					close1(t, db)
					if v, _ := get(t, openSound(t, path, manual), "a"); v != "now" {
						t.Errorf("the file has %q", v)
					}
				})
			})
		}
	}
}

// stuck is a value that takes until it is closed to be written.
type stuck chan struct{}

func (stuck) SizeBytes() int { return 1 }

func (s stuck) AppendTo(dst []byte) ([]byte, error) {
	<-s
	return append(dst, "done"...), nil
}

// TestADurableSnapshotHasWhatAnEarlierOneHad, while a file is had late, or what could not be written in time counts as
// durable, and commits are slow.
func TestADurableSnapshotHasWhatAnEarlierOneHad(t *testing.T) {
	for seed := range uint64(testsupport.Rounds(20, 6)) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			path := testsupport.Path(t)
			holder := openSound(t, path, manual)
			o := Options{LockTimeout: time.Millisecond, CommitInterval: time.Second, DurableDelay: 100 * time.Millisecond}
			if seed%2 == 0 {
				o.DurableGrace = 5 * time.Second
			}
			db := open(t, path, o)
			hadAt := time.Duration(rnd.Int64N(int64(10 * time.Second)))
			began, seen, released := time.Now(), 0, false
			for n := 1; time.Since(began) < 2*time.Minute; n++ {
				put(t, db, "n", strconv.Itoa(n))
				if rnd.IntN(20) == 0 {
					took := testsupport.SlowValue(rnd.Int64N(int64(time.Second)) << rnd.IntN(6))
					apply(t, db, func(b *Batch) { b.Put(Bucket{"another", "b"}, "slow", took); b.Urgent() })
				}
				if !released && time.Since(began) > hadAt {
					close1(t, holder)
					released = true
				}
				time.Sleep(time.Duration(rnd.Int64N(int64(200 * time.Millisecond))))
				s, err := db.DurableSnapshot(testBucket.Space)
				if err != nil { // The disk does not answer.
					continue
				}
				got, err := scan(s, testBucket.Name, "")
				s.Close()
				now, _ := strconv.Atoi(got["n"])
				if err != nil || now < seen {
					t.Fatalf("seed %d: after %v it has %d, and had %d (%v)", seed, time.Since(began), now, seen, err)
				}
				seen = now
			}
			time.Sleep(2 * time.Minute) // The disk answers again.
			flush(t, db)
			if db.MemoryOnly() || seen == 0 {
				t.Errorf("seed %d: seen up to %d, in memory: %v", seed, seen, db.Err())
			}
		})
	}
}
