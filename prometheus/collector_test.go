package warmprom

import (
	"flag"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/workqueue"
)

var update = flag.Bool("update", false, "write testdata/exposition.txt and docs/metrics.md anew")

var build = scrape{version: "v1.2.3", goVersion: "go1.26"}

func at(seconds int64) time.Time { return time.Unix(1_800_000_000+seconds, 0) }

// everything returns the numbers of a Cache with one informer, handler and reconciler, with all that can be there at one
// time: the file has one problem at most, and an informer starts once, with one cause.
func everything(name string) warmwatch.Metrics {
	m := warmwatch.Metrics{Name: name, Persistent: true, Degraded: map[warmwatch.Code]int{warmwatch.CodeDiskHangs: 1}}
	for _, code := range []warmwatch.Code{warmwatch.CodeNotRead, warmwatch.CodeOtherRequest, warmwatch.CodeFromMemory,
		warmwatch.CodeUnreadable, warmwatch.CodeRefused, warmwatch.CodeServerFails} {
		m.Degraded[code] = 1
	}
	f := &m.File
	f.Bytes, f.FreeBytes, f.Commits, f.FailedCommits = 4096*100, 4096*10, 117, 3
	for n := range f.CommitDurations {
		f.CommitDurations[n] = int64(n + 1)
	}
	f.CommitTime, f.WrittenBytes, f.PendingBytes = 2500*time.Millisecond, 123456, 789
	f.Unwritten, f.OldestSnapshot, f.Damages, f.DamagedValues = at(1), at(2), 1, 4
	i := warmwatch.InformerMetrics{
		Group: "apps", Version: "v1", Resource: "deployments", Namespace: "default", Name: "mine", Objects: 50_000, Live: true,
		LastContact: at(3), StartedFrom: "disk", CaughtUpAfter: 88 * time.Millisecond, Resumes: 2, Relists: map[warmwatch.Cause]int{},
		ReceivedBytes: map[string]int64{}, Events: map[string]int64{},
	}
	for n, cause := range causes[4:] { // The first ones are those of a start. So is Incomplete.
		i.Relists[warmwatch.Cause(cause)] = n + 1
	}
	delete(i.Relists, warmwatch.CauseIncomplete)
	i.Relists[warmwatch.CauseOtherCluster] = 1
	for n, request := range requests {
		i.ReceivedBytes[request] = int64(1000 * (n + 1))
	}
	for n, event := range events {
		i.Events[event] = int64(10 * (n + 1))
	}
	h := warmwatch.HandlerStatus{Name: "network", Undelivered: 5, UndeliveredBytes: 600, OldestUndelivered: at(4), CallbackSince: at(5),
		Restarts: map[string]int64{}, Skipped: 1}
	for _, cause := range restarts {
		h.Restarts[cause] = 1
	}
	i.Handlers = []warmwatch.HandlerStatus{h}
	i.Reconcilers = []warmwatch.ReconcilerStatus{{Status: workqueue.Status{Name: "routes", Keys: 7}, Succeeded: 8, Failed: 9, Requeued: 10, ReconcilingSince: at(6)}}
	m.Informers = []warmwatch.InformerMetrics{i}
	return m
}

func registry(t *testing.T, caches ...warmwatch.Metrics) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(newCollector(build, func() []warmwatch.Metrics { return caches })); err != nil {
		t.Fatal(err)
	}
	return r
}

// exposition returns what Prometheus gets. A registry that cannot gather fails the test.
func exposition(t *testing.T, caches ...warmwatch.Metrics) string {
	t.Helper()
	return scraped(t, newCollector(build, func() []warmwatch.Metrics { return caches }))
}

func scraped(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(c); err != nil {
		t.Error(err)
	}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Error(w.Code, w.Body)
	}
	return w.Body.String()
}

// seriesIn returns the lines of an exposition that have a value.
func seriesIn(exposition string) []string {
	var all []string
	for line := range strings.Lines(exposition) {
		if !strings.HasPrefix(line, "#") {
			all = append(all, strings.TrimSuffix(line, "\n"))
		}
	}
	return all
}

// golden compares a file with what it should be, or writes it.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil { //nolint:gosec // A part of the repository.
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is something else, see -update (-file +now):\n%s", file, diff)
	}
}

// TestExposition has a Cache with everything, and one that works from memory and has heard no server.
func TestExposition(t *testing.T) {
	empty := warmwatch.Metrics{Name: "other", Degraded: map[warmwatch.Code]int{warmwatch.CodeLocked: 1}, Informers: []warmwatch.InformerMetrics{{
		Version: "v1", Resource: "pods", Handlers: []warmwatch.HandlerStatus{{Name: "*main.handler"}}, Reconcilers: []warmwatch.ReconcilerStatus{{Status: workqueue.Status{Name: "r"}}},
	}}}
	golden(t, filepath.Join("testdata", "exposition.txt"), exposition(t, everything("agent"), empty))
}

func TestTheNamesAreLintClean(t *testing.T) {
	problems, err := testutil.GatherAndLint(registry(t, everything("agent")))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestEveryMetricIsExported, with the labels and values of the table.
func TestEveryMetricIsExported(t *testing.T) {
	families, err := registry(t, everything("agent")).Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != len(metrics) {
		t.Errorf("%d metrics are exported, the table has %d", len(families), len(metrics))
	}
	for _, f := range families {
		m, is := byName()[f.GetName()]
		if !is {
			t.Errorf("%s is not in the table", f.GetName())
			continue
		}
		if got := strings.ToLower(f.GetType().String()); got != m.kind.name {
			t.Errorf("%s is a %s, the table says %s", f.GetName(), got, m.kind.name)
		}
		for _, one := range f.GetMetric() {
			if len(one.GetLabel()) != len(m.labels) {
				t.Errorf("%s has the labels %v, the table says %v", f.GetName(), one.GetLabel(), m.labels)
			}
			for _, l := range one.GetLabel() {
				if len(m.values) > 0 && l.GetName() == m.labels[len(m.labels)-1] && !contains(m.values, l.GetValue()) {
					t.Errorf("%s has %s=%q, the table has no such value", f.GetName(), l.GetName(), l.GetValue())
				}
			}
		}
	}
}

func TestAnInformerWithAHandlerAndAReconcilerHasAtMost80Series(t *testing.T) {
	all := seriesIn(exposition(t, everything("agent")))
	t.Log(len(all), "series")
	if len(all) > 80 {
		t.Errorf("%d series:\n%s", len(all), strings.Join(all, "\n"))
	}
}

// TestInformersWithTheSameLabelsAreCombined: they differ in what is no label, as plain handlers of one type do.
func TestInformersWithTheSameLabelsAreCombined(t *testing.T) {
	m := everything("agent")
	second := everything("agent").Informers[0]
	second.Live, second.LastContact, second.CaughtUpAfter, second.Objects = false, at(-1), time.Second, 1
	second.Relists = map[warmwatch.Cause]int{warmwatch.CauseExpired: 100}
	second.Handlers[0].OldestUndelivered, second.Handlers[0].CallbackSince = time.Time{}, at(-2)
	second.Handlers = append(second.Handlers, second.Handlers[0])
	expired := m.Informers[0].Relists[warmwatch.CauseExpired]
	m.Informers = append(m.Informers, second)
	now := scrape{caches: []warmwatch.Metrics{m}}
	for name, want := range map[string]float64{
		"informer_objects": 50_001, "informer_live": 0, "informer_resumes_total": 4, "informer_caught_up_seconds": 1,
		"informer_last_contact_timestamp_seconds":      float64(at(-1).Unix()),
		"handler_undelivered":                          15,
		"handler_oldest_undelivered_timestamp_seconds": float64(at(4).Unix()),
		"handler_callback_timestamp_seconds":           float64(at(-2).Unix()),
		"reconciler_keys":                              14, "reconcile_timestamp_seconds": float64(at(6).Unix()),
	} {
		all := byName()[prefix+name].series(&now)
		if len(all) != 1 {
			t.Errorf("%s has %d series", name, len(all))
		}
		for _, s := range all {
			if s.value != want {
				t.Errorf("%s is %v, want %v", name, s.value, want)
			}
		}
	}
	for _, s := range byName()["warmwatch_informer_relists_total"].series(&now) {
		if s.labels[len(s.labels)-1] == string(warmwatch.CauseExpired) && s.value != float64(expired+100) {
			t.Errorf("relists of Expired: %v, want %d and 100", s.value, expired)
		}
	}
	exposition(t, m) // The registry accepts it.
}

// TestGatherNeverFails: not for a Cache without anything, nor for labels that are no text.
func TestGatherNeverFails(t *testing.T) {
	bad := everything("a\xff")
	in := &bad.Informers[0]
	in.Name, in.Namespace, in.StartedFrom = "\xff", "\n\"\\", ""
	in.Handlers = append(in.Handlers, in.Handlers[0])
	in.Handlers[0].Name, in.Handlers[1].Name = "h\xfe", "h\xff" // The same label.
	in.Relists["\xc3\x28"] = 1
	for name, caches := range map[string][]warmwatch.Metrics{
		"no Cache": nil, "a Cache with nothing": {{}}, "labels that are not UTF-8": {bad}, "two Caches": {everything("a"), everything("b")},
	} {
		t.Run(name, func(t *testing.T) { exposition(t, caches...) })
	}
}

func TestTimesThatAreZeroHaveNoSeries(t *testing.T) {
	m := warmwatch.Metrics{Name: "c", Informers: []warmwatch.InformerMetrics{{Handlers: make([]warmwatch.HandlerStatus, 1), Reconcilers: make([]warmwatch.ReconcilerStatus, 1)}}}
	for _, line := range seriesIn(exposition(t, m)) {
		if strings.Contains(line, "timestamp_seconds") || strings.Contains(line, "caught_up") {
			t.Error(line)
		}
	}
}

// TestTheHistogramHasEachAttempt: the bounds are 1 ms · 2ⁿ, and the last element has none.
func TestTheHistogramHasEachAttempt(t *testing.T) {
	families, err := registry(t, everything("agent")).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "warmwatch_commit_duration_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		if h.GetSampleCount() != 120 || h.GetSampleSum() != 2.5 || len(h.GetBucket()) != 14 {
			t.Errorf("%d attempts in %v s, %d buckets", h.GetSampleCount(), h.GetSampleSum(), len(h.GetBucket()))
		}
		for n, b := range h.GetBucket() {
			if bound := 0.001 * math.Exp2(float64(n)); b.GetUpperBound() != bound || b.GetCumulativeCount() != uint64((n+1)*(n+2)/2) {
				t.Errorf("bucket %d: %v", n, b)
			}
		}
		return
	}
	t.Error("there is no histogram")
}

func open(t *testing.T, name string) *warmwatch.Cache {
	t.Helper()
	c, err := warmwatch.Open(t.Context(), filepath.Join(t.TempDir(), "cache.db"), warmwatch.Options{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestNewCollector(t *testing.T) {
	one, same, other := open(t, "one"), open(t, "one"), open(t, "other")
	for name, test := range map[string]struct {
		caches []*warmwatch.Cache
		err    string
	}{
		"no Cache":               {},
		"two Caches":             {caches: []*warmwatch.Cache{one, other}},
		"two Caches of one name": {caches: []*warmwatch.Cache{one, same}, err: `warmprom: new collector: two Caches have the name "one", give each an Options.Name`},
		"a nil Cache":            {caches: []*warmwatch.Cache{one, nil}, err: "warmprom: new collector: a Cache is nil"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := NewCollector(test.caches...)
			if test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Fatalf("error %v, want %s", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r := prometheus.NewPedanticRegistry()
			r.MustRegister(c)
			if _, err := r.Gather(); err != nil {
				t.Error(err)
			}
			again, err := NewCollector(test.caches...)
			if err == nil {
				err = r.Register(again)
			}
			if err == nil {
				t.Error("a second collector was registered")
			}
		})
	}
}

func TestAClosedCacheIsScraped(t *testing.T) {
	c := open(t, "closed")
	collector, err := NewCollector(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if n := testutil.CollectAndCount(collector, "warmwatch_persistent"); n != 1 {
		t.Errorf("%d series", n)
	}
}

func TestVersionIn(t *testing.T) {
	library := func(version string, replace *debug.Module) *debug.Module {
		return &debug.Module{Path: "github.com/warmwatch/warmwatch", Version: version, Replace: replace}
	}
	for name, test := range map[string]struct {
		info *debug.BuildInfo
		want string
	}{
		"a program without information": {nil, "unknown"},
		"a program without the library": {&debug.BuildInfo{}, "unknown"},
		"a dependency":                  {&debug.BuildInfo{Deps: []*debug.Module{library("v1.2.3", nil)}}, "v1.2.3"},
		"the main module":               {&debug.BuildInfo{Main: *library("(devel)", nil)}, "(devel)"},
		"replaced by a directory":       {&debug.BuildInfo{Deps: []*debug.Module{library("v1.2.3", &debug.Module{Path: "../"})}}, "(devel)"},
		"replaced by a fork":            {&debug.BuildInfo{Deps: []*debug.Module{library("v1.2.3", &debug.Module{Version: "v9"})}}, "v9"},
	} {
		if got := versionIn(test.info); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
