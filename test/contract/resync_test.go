package contract_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// resyncs is a handler that notes when it was notified of an update.
type resyncs struct {
	recorder.Recorder
	begin time.Time
	at    []time.Duration
	same  bool // Old and new were the same pointer, always.
}

func newResyncs() *resyncs { return &resyncs{begin: time.Now(), same: true} }

func (r *resyncs) OnUpdate(old, obj any) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.at = append(r.at, time.Since(r.begin))
	r.same = r.same && old.(*corev1.ConfigMap) == obj.(*corev1.ConfigMap)
}

func (r *resyncs) times() []time.Duration {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.at
}

func TestResyncPeriodsAreRoundedUp(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	type handlers []*time.Duration // nil: the informer's default.
	for _, c := range []struct {
		name         string
		informer     time.Duration
		before, late handlers
		want         [][]time.Duration // Of before, then late; within 12 s.
	}{
		{
			name:     "less than a second is a second",
			informer: time.Hour,
			before:   handlers{ptr.To(300 * ms)},
			want:     [][]time.Duration{{s, 2 * s, 3 * s, 4 * s, 5 * s, 6 * s, 7 * s, 8 * s, 9 * s, 10 * s, 11 * s, 12 * s}},
		},
		{
			name:     "the informer's own period may be shorter, and is how often is looked",
			informer: 400 * ms,
			before:   handlers{nil, ptr.To(1500 * ms)},
			want: [][]time.Duration{
				{1200 * ms, 2400 * ms, 3600 * ms, 4800 * ms, 6 * s, 7200 * ms, 8400 * ms, 9600 * ms, 10800 * ms, 12 * s},
				{1600 * ms, 3200 * ms, 4800 * ms, 6400 * ms, 8 * s, 9600 * ms, 11200 * ms},
			},
		},
		{
			name:     "a period is rounded up to a multiple of the shortest one",
			informer: time.Hour,
			before:   handlers{ptr.To(3 * s), ptr.To(2 * s), ptr.To(5 * s)},
			want:     [][]time.Duration{{4 * s, 8 * s, 12 * s}, {2 * s, 4 * s, 6 * s, 8 * s, 10 * s, 12 * s}, {6 * s, 12 * s}},
		},
		{
			name:     "the informer's period is the default, and zero means none",
			informer: 5 * s,
			before:   handlers{nil, ptr.To(0 * s)},
			want:     [][]time.Duration{{5 * s, 10 * s}, nil},
		},
		{
			name:     "a shorter one before the start makes the informer look more often",
			informer: 5 * s,
			before:   handlers{nil, ptr.To(2 * s)},
			want:     [][]time.Duration{{6 * s, 12 * s}, {2 * s, 4 * s, 6 * s, 8 * s, 10 * s, 12 * s}},
		},
		{
			name:     "a shorter one after the start does not",
			informer: 5 * s,
			late:     handlers{ptr.To(2 * s), nil, ptr.To(6 * s)},
			want:     [][]time.Duration{{5 * s, 10 * s}, {5 * s, 10 * s}, {10 * s}},
		},
		{
			name:   "an informer without a period never resyncs, whatever handlers ask for",
			before: handlers{ptr.To(2 * s)},
			late:   handlers{ptr.To(2 * s)},
			want:   [][]time.Duration{nil, nil},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			contract(t, func(t *testing.T, impl implementation) {
				f := source.New(t, source.ConfigMap("a"))
				informer := impl.new(t, f, config{resync: c.informer})
				var rs []*resyncs
				register := func(hs handlers) {
					for _, period := range hs {
						r := newResyncs()
						rs = append(rs, r)
						if _, err := informer.AddEventHandlerWithOptions(r, cache.HandlerOptions{ResyncPeriod: period}); err != nil {
							t.Fatal(err)
						}
					}
				}
				register(c.before)
				stop := bubble.Start(t, informer)
				register(c.late)
				bubble.Advance(12 * s)
				stop()
				for i, r := range rs {
					if diff := cmp.Diff(c.want[i], r.times()); diff != "" {
						t.Errorf("handler %d (-want +got):\n%s", i, diff)
					}
				}
			})
		})
	}
}

func TestAResyncTellsOfEveryObjectWithTheSameOneAsOldAndNew(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		informer := impl.new(t, f, config{resync: time.Hour})
		r := newResyncs()
		if _, err := informer.AddEventHandlerWithResyncPeriod(r, time.Second); err != nil {
			t.Fatal(err)
		}
		other, _ := recorder.Add(t, informer, 0)
		bubble.Start(t, informer)
		bubble.Advance(2 * time.Second)
		if diff := cmp.Diff([]time.Duration{time.Second, time.Second, 2 * time.Second, 2 * time.Second}, r.times()); diff != "" {
			t.Error(diff)
		}
		if !r.same {
			t.Error("old and new are not the same object")
		}
		other.ExpectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial")
	})
}

func TestAResyncTellsOfWhatIsInTheStoreThen(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		informer := impl.new(t, f, config{resync: time.Hour})
		r, _ := recorder.Add(t, informer, time.Second)
		bubble.Start(t, informer)
		r.Take()
		bubble.Advance(500 * time.Millisecond)
		f.Put(source.ConfigMap("a"), source.ConfigMap("c"))
		f.Remove("b")
		synctest.Wait()
		r.Expect(t, "update ns/a@1→3", "add ns/c@4", "delete ns/b@5")
		bubble.Advance(500 * time.Millisecond)
		r.ExpectInAnyOrder(t, "update ns/a@3→3", "update ns/c@4→4")
	})
}

func TestResyncsComeOnlyWhileAWatchIsActive(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f, config{resync: 10 * time.Second})
		r := newResyncs()
		if _, err := informer.AddEventHandler(r); err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		bubble.Advance(15 * time.Second)
		f.SetDown(errList) // Not retried without a list.
		bubble.Advance(10 * time.Minute)
		if got := len(r.times()); got != 1 {
			t.Errorf("%d resyncs, expected the one before the watch was lost", got)
		}
		f.SetDown(nil)
		bubble.Advance(2 * time.Minute)
		if got := len(r.times()); got < 2 {
			t.Error("no resync after the watch was back")
		}
	})
}
