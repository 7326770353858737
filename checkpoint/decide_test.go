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
	resume  = Decision{Serve: true, Cause: CauseResumed}
	refresh = Decision{Serve: true}
	foreign = Decision{Rewrite: true, Newest: true}
	rewrite = Decision{Serve: true, Rewrite: true}
	redo    = Decision{Rewrite: true}
	retell  = Decision{StartOverPending: true}
	replace = Decision{Rewrite: true, StartOverPending: true}
	reindex = Decision{Serve: true, RebuildIndices: true, Cause: CauseResumed}
)

// rows are the ways to differ from a checkpoint that resumes, with what the
// design says of each (docs/design/README.md, "A start").
var rows = []struct {
	topic  string // Rows of one topic exclude each other.
	name   string
	change func(*Record, *Want)
	want   Decision
	cause  Cause
}{

	{"state", "the first list is incomplete", func(r *Record, _ *Want) { r.State = StateSyncing }, retell, CauseIncomplete},
	{"state", "a relist is incomplete", func(r *Record, _ *Want) { r.State = StateRefreshing }, refresh, CauseIncomplete},
	{"state", "the state is missing", func(r *Record, _ *Want) { r.State = "" }, retell, CauseDamaged},
	{"state", "the state is unknown", func(r *Record, _ *Want) { r.State = "Complete" }, retell, CauseDamaged},

	{"schema", "the schema version differs", func(_ *Record, w *Want) { w.SchemaVersion = "s-2" }, rewrite, CauseSchemaVersion},
	{"schema", "the schema version is missing", func(r *Record, _ *Want) { r.SchemaVersion = "" }, rewrite, CauseSchemaVersion},
	{"transform", "the transform version differs", func(_ *Record, w *Want) { w.TransformVersion = "t-2" }, replace, CauseTransformVersion},
	{"transform", "there is no transform any more", func(_ *Record, w *Want) { w.TransformVersion = "" }, replace, CauseTransformVersion},
	{"transform", "there was no transform", func(r *Record, _ *Want) { r.TransformVersion = "" }, replace, CauseTransformVersion},
	{"index", "the index version differs", func(_ *Record, w *Want) { w.IndexVersion = "i-2" }, reindex, CauseResumed},
	{"index", "there were no indexers", func(r *Record, _ *Want) { r.IndexVersion = "" }, reindex, CauseResumed},

	{"cluster", "it is another cluster", func(_ *Record, w *Want) { w.ClusterID = "c-2" }, foreign, CauseOtherCluster},
	{"identity", "another group", func(_ *Record, w *Want) { w.Group = "extensions" }, foreign, CauseOtherIdentity},
	{"identity", "another version", func(_ *Record, w *Want) { w.Version = "v2" }, foreign, CauseOtherIdentity},
	{"identity", "another resource", func(_ *Record, w *Want) { w.Resource = "daemonsets" }, foreign, CauseOtherIdentity},
	{"identity", "another namespace", func(_ *Record, w *Want) { w.Namespace = "" }, foreign, CauseOtherIdentity},
	{"identity", "another label selector", func(_ *Record, w *Want) { w.LabelSelector = "a=c" }, foreign, CauseOtherIdentity},
	{"identity", "another field selector", func(_ *Record, w *Want) { w.FieldSelector = "c=e" }, foreign, CauseOtherIdentity},
	{"identity", "another name", func(_ *Record, w *Want) { w.Name = "m" }, foreign, CauseOtherIdentity},
	{"identity", "another form", func(_ *Record, w *Want) { w.Form = FormUnstructured }, foreign, CauseOtherIdentity},
	{"identity", "the identity is missing", func(r *Record, _ *Want) { r.Identity = Identity{} }, foreign, CauseOtherIdentity},

	{"rewrite", "not every record was written anew", func(r *Record, _ *Want) { r.Rewrite = true }, rewrite, CauseIncomplete},
	{"version", "the resourceVersion is missing (A3)", func(r *Record, _ *Want) { r.ResourceVersion = "" }, refresh, CauseNoVersion},
	{"version", "the resourceVersion is the one that means any (A3)", func(r *Record, _ *Want) { r.ResourceVersion = "0" }, refresh, CauseNoVersion},
	{"version", "the resourceVersion is not a number (A4)", func(r *Record, _ *Want) { r.ResourceVersion = "12a" }, refresh, CauseNoVersion},
	{"version", "the resourceVersion has leading zeros (A4)", func(r *Record, _ *Want) { r.ResourceVersion = "012" }, refresh, CauseNoVersion},
	{"version", "the resourceVersion is negative (A4)", func(r *Record, _ *Want) { r.ResourceVersion = "-1" }, refresh, CauseNoVersion},
	{"history", "the server keeps no history", func(_ *Record, w *Want) { w.NeverResume = true }, refresh, CauseNeverResume},
}

func checkDecision(t *testing.T, want, got Decision) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Decision{}, "Cause", "Reason")); diff != "" {
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
			if got.Cause != row.cause {
				t.Errorf("cause %q, want %q", got.Cause, row.cause)
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
	if got.Cause != CauseFirstStart {
		t.Errorf("cause %q", got.Cause)
	}
	// Neither an empty record nor an empty want is a match.
	if got := Decide(Evidence{Record: &Record{}}, Want{}); got.Cause == CauseResumed || got.Serve {
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
		cause    Cause
	}{
		{"a checkpoint that cannot be read, beside objects", Evidence{Stored: true}, replace, CauseDamaged},
		{"objects are missing", Evidence{Record: &found, Stored: true, Incomplete: true}, redo, CauseDamaged},
		{"index entries may be wrong", Evidence{Record: &found, Stored: true, IndexErr: failed}, reindex, CauseResumed},
		{"index entries may be wrong, and objects missing", Evidence{Record: &found, Stored: true, Incomplete: true, IndexErr: failed}, Decision{Rewrite: true, RebuildIndices: true}, CauseDamaged},
		{"objects are missing that are not served anyway", Evidence{Record: &otherTransform, Stored: true, Incomplete: true}, replace, CauseTransformVersion},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := Decide(row.evidence, want)
			checkDecision(t, row.want, got)
			if got.Cause != row.cause {
				t.Errorf("cause %q, want %q", got.Cause, row.cause)
			}
		})
	}
}

// TestDecideOnSeveralDifferences checks that each difference has its way,
// whatever others there are, and with them A3.
func TestDecideOnSeveralDifferences(t *testing.T) {
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
			if row.cause != CauseResumed {
				expected.Cause = ""
			}
			expected.Newest = expected.Newest || row.want.Newest
			expected.Serve = expected.Serve && row.want.Serve
			expected.Rewrite = expected.Rewrite || row.want.Rewrite
			expected.StartOverPending = expected.StartOverPending || row.want.StartOverPending
			expected.RebuildIndices = expected.RebuildIndices || row.want.RebuildIndices
		}
		got := Decide(Evidence{Record: &found}, want)
		checkDecision(t, expected, got)
		if (expected.Cause == CauseResumed) != (got.Cause == CauseResumed) || got.Cause == "" {
			t.Errorf("the cause is %q", got.Cause)
		}
		if got.Cause == CauseResumed && !mayResume(found, want) {
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
