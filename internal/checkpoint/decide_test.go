package checkpoint

import (
	"errors"
	"flag"
	"math/rand"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var seed = flag.Int64("seed", time.Now().UnixNano(), "seed of the random tests")

// complete and wanted match in everything.
func complete() Record {
	return Record{
		ResourceVersion: "4711",
		State:           StateComplete,
		LastFullList:    time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC),
		ClusterID:       "c-1",
		Identity: Identity{
			Group: "apps", Version: "v1", Resource: "deployments", Namespace: "shop",
			LabelSelector: "a=b", FieldSelector: "c=d", Name: "n", Form: FormTyped,
		},
		SchemaVersion:    "s-1",
		TransformVersion: "t-1",
		IndexVersion:     "i-1",
	}
}

func wanted() Want {
	found := complete()
	return Want{
		Identity:         found.Identity,
		ClusterID:        found.ClusterID,
		SchemaVersion:    found.SchemaVersion,
		TransformVersion: found.TransformVersion,
		IndexVersion:     found.IndexVersion,
	}
}

var (
	resume  = Decision{Action: ActionResume, Serve: true}
	refresh = Decision{Action: ActionRelist, Serve: true}
	discard = Decision{Action: ActionDiscard, Rewrite: true}
	rewrite = Decision{Action: ActionRelist, Serve: true, Rewrite: true}
	redo    = Decision{Action: ActionRelist, Rewrite: true}
	retell  = Decision{Action: ActionRelist, TellAgain: true}
	replace = Decision{Action: ActionRelist, Rewrite: true, TellAgain: true}
	reindex = Decision{Action: ActionResume, Serve: true, RebuildIndices: true}
)

// rows are the ways to differ from a checkpoint that resumes, with what the
// design says of each (docs/design/README.md, "A start").
var rows = []struct {
	topic  string // Rows of one topic exclude each other.
	name   string
	change func(*Record, *Want)
	want   Decision
	reason string
}{

	{"state", "the first list is incomplete", func(r *Record, _ *Want) { r.State = StateSyncing }, retell, "first list is incomplete"},
	{"state", "a relist is incomplete", func(r *Record, _ *Want) { r.State = StateRefreshing }, refresh, "relist is incomplete"},
	{"state", "the state is missing", func(r *Record, _ *Want) { r.State = "" }, retell, `state "" is unknown`},
	{"state", "the state is unknown", func(r *Record, _ *Want) { r.State = "Complete" }, retell, `"Complete" is unknown`},

	{"schema", "the schema version differs", func(_ *Record, w *Want) { w.SchemaVersion = "s-2" }, rewrite, `schema version differs: "s-1" is stored, now it is "s-2"`},
	{"schema", "the schema version is missing", func(r *Record, _ *Want) { r.SchemaVersion = "" }, rewrite, "schema version"},
	{"transform", "the transform version differs", func(_ *Record, w *Want) { w.TransformVersion = "t-2" }, replace, "transform version"},
	{"transform", "there is no transform any more", func(_ *Record, w *Want) { w.TransformVersion = "" }, replace, "transform version"},
	{"transform", "there was no transform", func(r *Record, _ *Want) { r.TransformVersion = "" }, replace, "transform version"},
	{"index", "the index version differs", func(_ *Record, w *Want) { w.IndexVersion = "i-2" }, reindex, "index version"},
	{"index", "there were no indexers", func(r *Record, _ *Want) { r.IndexVersion = "" }, reindex, "index version"},

	{"cluster", "it is another cluster", func(_ *Record, w *Want) { w.ClusterID = "c-2" }, discard, `cluster differs: "c-1" is stored, now it is "c-2"`},
	{"identity", "another group", func(_ *Record, w *Want) { w.Group = "extensions" }, discard, "identity"},
	{"identity", "another version", func(_ *Record, w *Want) { w.Version = "v2" }, discard, "identity"},
	{"identity", "another resource", func(_ *Record, w *Want) { w.Resource = "daemonsets" }, discard, "identity"},
	{"identity", "another namespace", func(_ *Record, w *Want) { w.Namespace = "" }, discard, "identity"},
	{"identity", "another label selector", func(_ *Record, w *Want) { w.LabelSelector = "a=c" }, discard, "identity"},
	{"identity", "another field selector", func(_ *Record, w *Want) { w.FieldSelector = "c=e" }, discard, "identity"},
	{"identity", "another name", func(_ *Record, w *Want) { w.Name = "m" }, discard, "identity"},
	{"identity", "another form", func(_ *Record, w *Want) { w.Form = FormUnstructured }, discard, "identity"},
	{"identity", "the identity is missing", func(r *Record, _ *Want) { r.Identity = Identity{} }, discard, "identity"},

	{"rewrite", "not every record was written anew", func(r *Record, _ *Want) { r.Rewrite = true }, rewrite, "rewritten yet"},
	{"rewound", "the objects are of another cluster", func(r *Record, _ *Want) { r.Rewound = true }, discard, "compared yet"},
	{"version", "the resourceVersion is missing (A3)", func(r *Record, _ *Want) { r.ResourceVersion = "" }, refresh, `resourceVersion ""`},
	{"version", "the resourceVersion is the one that means any (A3)", func(r *Record, _ *Want) { r.ResourceVersion = "0" }, refresh, `resourceVersion "0"`},
	{"version", "the resourceVersion is not a number (A4)", func(r *Record, _ *Want) { r.ResourceVersion = "12a" }, refresh, `resourceVersion "12a"`},
	{"version", "the resourceVersion has leading zeros (A4)", func(r *Record, _ *Want) { r.ResourceVersion = "012" }, refresh, `resourceVersion "012"`},
	{"version", "the resourceVersion is negative (A4)", func(r *Record, _ *Want) { r.ResourceVersion = "-1" }, refresh, `resourceVersion "-1"`},
	{"history", "the server keeps no history", func(_ *Record, w *Want) { w.NeverResume = true }, refresh, "keeps no history of deployments.apps/v1"},
}

func checkDecision(t *testing.T, want, got Decision) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Decision{}, "Reason")); diff != "" {
		t.Errorf("-want +got:\n%s\nreason: %s", diff, got.Reason)
	}
}

func TestDecideOnOneDifference(t *testing.T) {
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			found, want := complete(), wanted()
			row.change(&found, &want)
			got := Decide(Evidence{Record: &found}, want)
			checkDecision(t, row.want, got)
			if !strings.Contains(got.Reason, row.reason) {
				t.Errorf("reason = %q, want something with %q", got.Reason, row.reason)
			}
		})
	}
}

func TestDecideToResume(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Record, *Want)
	}{
		{"all matches", func(*Record, *Want) {}},
		{"the times of the last list and event are missing", func(r *Record, _ *Want) { r.VouchedAt, r.LastFullList = time.Time{}, time.Time{} }},
		{"the cluster is not known yet", func(_ *Record, w *Want) { w.ClusterID = "" }},
		{"the cluster was not known", func(r *Record, _ *Want) { r.ClusterID = "" }},
		{"the resourceVersion has more digits than an integer", func(r *Record, _ *Want) { r.ResourceVersion = strings.Repeat("9", 40) }},
		{"there is neither transform nor indexer", func(r *Record, w *Want) {
			r.TransformVersion, r.IndexVersion = "", ""
			w.TransformVersion, w.IndexVersion = "", ""
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found, want := complete(), wanted()
			tc.change(&found, &want)
			got := Decide(Evidence{Record: &found}, want)
			checkDecision(t, resume, got)
			if !mayResume(found, want) {
				t.Error("mayResume, which other tests rely on, disagrees")
			}
		})
	}
}

func TestDecideOnNothingFound(t *testing.T) {
	got := Decide(Evidence{}, wanted())
	checkDecision(t, retell, got)
	if got.Reason == "" {
		t.Error("no reason given")
	}
	// Neither an empty record nor an empty want is a match.
	if got := Decide(Evidence{Record: &Record{}}, Want{}); got.Action == ActionResume || got.Serve {
		t.Errorf("two zero values: %+v", got)
	}
}

func TestDecideOnTheStateOfTheFile(t *testing.T) {
	found, want := complete(), wanted()
	otherTransform := complete()
	otherTransform.TransformVersion = "t-0"
	failed := errors.New("of no zone")
	for _, row := range []struct {
		name     string
		evidence Evidence
		want     Decision
		reason   string
	}{
		{"a checkpoint that cannot be read, beside objects", Evidence{Stored: true}, replace, "no checkpoint that can be read"},
		{"a checkpoint that could not be read", Evidence{Record: &found, Stored: true, Unread: true}, Decision{Action: ActionRelist, Serve: true, Rewrite: true, RebuildIndices: true, TellAll: true}, "could not be read"},
		{"objects are missing", Evidence{Record: &found, Stored: true, Incomplete: true}, redo, "missing"},
		{"index entries may be wrong", Evidence{Record: &found, Stored: true, IndexErr: failed}, reindex, "of no zone"},
		{"the indices could not be rebuilt", Evidence{Record: &found, Stored: true, RebuildErr: failed}, redo, "of no zone"},
		{"index entries may be wrong, and objects missing", Evidence{Record: &found, Stored: true, Incomplete: true, IndexErr: failed}, Decision{Action: ActionRelist, Rewrite: true, RebuildIndices: true}, "missing"},
		{"both, of objects that are not served anyway", Evidence{Record: &otherTransform, Stored: true, Incomplete: true, RebuildErr: failed}, replace, "transform"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := Decide(row.evidence, want)
			checkDecision(t, row.want, got)
			if !strings.Contains(got.Reason, row.reason) {
				t.Errorf("reason: %s", got.Reason)
			}
		})
	}
}

// TestDecideOnSeveralDifferences checks that each difference has its way,
// whatever others there are, and with them A3.
func TestDecideOnSeveralDifferences(t *testing.T) {
	rank := map[Action]int{ActionResume: 0, ActionRelist: 1, ActionDiscard: 2}
	rng := rand.New(rand.NewSource(*seed))
	for range 20_000 {
		found, want, expected := complete(), wanted(), resume
		names := map[string]string{}
		for _, i := range rng.Perm(len(rows))[:1+rng.Intn(6)] {
			row := rows[i]
			if names[row.topic] != "" {
				continue
			}
			names[row.topic] = row.name
			row.change(&found, &want)
			if rank[row.want.Action] > rank[expected.Action] {
				expected.Action = row.want.Action
			}
			expected.Serve = expected.Serve && row.want.Serve
			expected.Rewrite = expected.Rewrite || row.want.Rewrite
			expected.TellAgain = expected.TellAgain || row.want.TellAgain
			expected.RebuildIndices = expected.RebuildIndices || row.want.RebuildIndices
		}
		got := Decide(Evidence{Record: &found}, want)
		checkDecision(t, expected, got)
		if got.Action == ActionResume && !mayResume(found, want) {
			t.Error("resumed")
		}
		if t.Failed() {
			t.Fatalf("differences: %q; repeat with -seed=%d", names, *seed)
		}
	}
}

// mayResume is A3, written down a second time.
func mayResume(r Record, w Want) bool {
	return r.State == "complete" &&
		regexp.MustCompile(`^[1-9][0-9]*$`).MatchString(r.ResourceVersion) &&
		r.Identity == w.Identity &&
		r.SchemaVersion == w.SchemaVersion &&
		r.TransformVersion == w.TransformVersion &&
		(r.ClusterID == w.ClusterID || r.ClusterID == "" || w.ClusterID == "") &&
		!w.NeverResume
}
