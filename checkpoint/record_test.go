package checkpoint

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRecordRoundTrip(t *testing.T) {
	for _, want := range []Record{
		{},
		complete(),
		{LastFullList: time.Date(2026, 3, 1, 9, 30, 10, 123456789, time.FixedZone("", 3600))},
	} {
		got, err := Parse(want.Encode(), want.ResourceVersion)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

// TestRecordFormatIsStable fails if a checkpoint of an earlier version would
// be misread. A renamed field is a lost field, and so a relist.
func TestRecordFormatIsStable(t *testing.T) {
	const old = `{"state":"complete","lastFullList":"2026-03-01T09:00:00Z","clusterID":"c-1",` +
		`"identity":{"group":"apps","version":"v1","resource":"deployments","namespace":"shop","labelSelector":"a=b",` +
		`"fieldSelector":"c=d","name":"n","form":"typed"},"schemaVersion":"s-1","transformVersion":"t-1","indexVersion":"i-1"}`
	got, err := Parse([]byte(old), "4711")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(complete(), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	b := complete().Encode()
	if string(b) != old {
		t.Errorf("written as\n%s, want\n%s", b, old)
	}
}

func TestRecordParse(t *testing.T) {
	if _, err := Parse([]byte(`{"state":"complete","later":{"a":[1]}}`), ""); err != nil {
		t.Errorf("an unknown field: %v", err)
	}
	for _, in := range []string{"", "{", "[]", "1", `{"state":1}`, `{"lastFullList":"yesterday"}`, "{}{}"} {
		if _, err := Parse([]byte(in), ""); !errors.Is(err, ErrBadRecord) {
			t.Errorf("Parse(%q): %v, want ErrBadRecord", in, err)
		}
	}
	b := Record{LastFullList: time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)}.Encode()
	if _, err := Parse(b, ""); !errors.Is(err, ErrBadRecord) {
		t.Errorf("a time that JSON lacks: %v", err)
	}
}

func TestIdentityString(t *testing.T) {
	for want, id := range map[string]Identity{
		"pods/v1 (typed)": {Version: "v1", Resource: "pods", Form: FormTyped},
		`deployments.apps/v1 (metadata) namespace="shop" labels="a=b" fields="c=d" name="n"`: {
			Group: "apps", Version: "v1", Resource: "deployments", Namespace: "shop",
			LabelSelector: "a=b", FieldSelector: "c=d", Name: "n", Form: FormMetadata,
		},
	} {
		if got := id.String(); got != want {
			t.Errorf("String() = %s, want %s", got, want)
		}
	}
}

func TestIdentitySpaceIsStable(t *testing.T) {
	for id, want := range map[Identity]string{
		{Version: "v1", Resource: "pods", Form: FormTyped}: "pods/v1-6c691bf7459bb04f8ec4cf7e293672b3",
		complete().Identity: "deployments.apps/v1-9a372f3077192d3af47dc69b385f7525",
	} {
		if got := id.Space(); got != want {
			t.Errorf("Space() of %v = %s, want %s", id, got, want)
		}
	}
}

// TestIdentitySpacesDiffer tries what a careless encoding confuses: two
// selectors in one file were once served each other's objects elsewhere
// (openyurt#1400).
func TestIdentitySpacesDiffer(t *testing.T) {
	parts := []string{"", "a", "b", "a,b", "a=b", "a/b", "a.b", "a-b", ",", "\x00", "\x01a"}
	seen := map[string]Identity{}
	check := func(id Identity) {
		space := id.Space()
		if other, ok := seen[space]; ok && other != id {
			t.Fatalf("%#v and %#v share %q", other, id, space)
		}
		seen[space] = id
	}
	for _, x := range parts {
		for _, y := range parts {
			check(Identity{Group: x, Version: y})
			check(Identity{Resource: x, Group: y})
			check(Identity{Namespace: x, LabelSelector: y})
			check(Identity{LabelSelector: x, FieldSelector: y})
			check(Identity{FieldSelector: x, Name: y})
			check(Identity{Name: x, Form: Form(y)})
			check(Identity{Resource: "pods", Version: "v1", LabelSelector: x, Name: y})
		}
	}
}

func FuzzParse(f *testing.F) {
	b := complete().Encode()
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b, "5")
		if err != nil {
			if !errors.Is(err, ErrBadRecord) {
				t.Fatalf("%v does not wrap ErrBadRecord", err)
			}
			return
		}
		// Whatever it is, only what is complete and matches resumes.
		want := wanted()
		if got := Decide(Evidence{Record: &r}, want).Cause; got == CauseResumed && !mayResume(r, want) {
			t.Fatalf("resumed at %+v", r)
		}
		got, err := Parse(r.Encode(), r.ResourceVersion)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, got); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	})
}
