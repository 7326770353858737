package debug

import (
	"encoding/json"
	"errors"
	"flag"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/workqueue"
)

var update = flag.Bool("update", false, "write the golden files of TestThePageIsTheGoldenFile anew")

const (
	pods    = `pods/v1 (typed) fields="spec.nodeName=node-7"`
	configs = `configmaps/v1 (metadata)`
)

// everything is a page that has something in each place. The picture in the docs is made of it.
func everything() overview {
	ago := func(d time.Duration) time.Time { return time.Now().UTC().Add(-d) }
	full := warmwatch.Problem{Code: warmwatch.CodeNotWritten, Message: "write /var/lib/agent/cache.db: no space left on device", Since: ago(3 * time.Minute)}
	seconds := func(s float64) map[string]float64 { return map[string]float64{"seconds": s} }
	return overview{
		Status: warmwatch.Status{
			Name: "agent", Path: "/var/lib/agent/cache.db",
			SetAside: []warmwatch.SetAside{{Path: "/var/lib/agent/cache.db.corrupt-20260112T031500Z", Time: ago(2 * time.Hour), Reason: "page 17 has a wrong id"}},
			Unused:   []warmwatch.Unused{{Informer: "endpoints/v1 (typed)", Since: ago(30 * time.Hour)}},
			Problems: []warmwatch.Problem{full},
			Informers: map[string]warmwatch.InformerStatus{
				pods: {
					Phase: warmwatch.PhaseLive, StartedFrom: "disk", Cause: warmwatch.CauseExpired, Reason: "too old resource version: 4102 (4711)",
					ResourceVersion: "48213", LastContact: ago(2 * time.Second), Objects: 38, Relists: 2, Resumes: 1,
					Problems: []warmwatch.Problem{full},
					Handlers: []warmwatch.HandlerStatus{
						{
							Name: "network", Durable: true, Undelivered: 412, UndeliveredBytes: 3_400_000, OldestUndelivered: ago(8 * time.Minute),
							Callback: "shop/cart-0", CallbackSince: ago(7 * time.Minute), Restarts: map[string]int64{"Backlog": 1}, Skipped: 1,
						},
						{Name: "retired", Durable: true, Absent: true, InitialList: true},
						{Name: "*main.metrics"},
					},
					Reconcilers: []warmwatch.ReconcilerStatus{{
						Status: workqueue.Status{Name: "files", Keys: 4}, Reconciling: "shop/cart-0", ReconcilingSince: ago(9 * time.Second),
						Succeeded: 130, Failed: 6, Requeued: 1, Err: errors.New("reconcile shop/web-1: mkdir /run/pods: permission denied"),
					}},
				},
				configs: {
					Phase: warmwatch.PhaseDisconnected, StartedFrom: "server", Cause: warmwatch.CauseFirstStart, LastContact: ago(time.Minute), Objects: 1204, Relists: 1,
					Problems: []warmwatch.Problem{full, {Code: warmwatch.CodeServerFails, Message: "dial tcp 10.0.0.1:443: connect: connection refused", Since: ago(time.Minute)}},
				},
				"*v1.Node": {Problems: []warmwatch.Problem{{Code: warmwatch.CodeFromMemory, Message: "client-go's own informer, not in the file"}}},
			},
			Workqueues: []workqueue.Status{{Name: "cleanup", Absent: true, Keys: 2}},
		},
		Metrics: warmwatch.Metrics{
			Name: "agent", Persistent: true, Degraded: map[warmwatch.Code]int{warmwatch.CodeNotWritten: 1},
			File: persist.Metrics{
				Bytes: 12_345_678, FreeBytes: 819_200, Commits: 1209, FailedCommits: 3, WrittenBytes: 5_000_000_000, PendingBytes: 1 << 20,
				Unwritten: ago(3 * time.Minute), OldestSnapshot: ago(time.Second), Damages: 1, DamagedValues: 2,
			},
			Informers: []warmwatch.InformerMetrics{
				{
					Informer: pods, Version: "v1", Resource: "pods", Objects: 38, Live: true, CaughtUpAfter: 89 * time.Millisecond,
					Relists:       map[warmwatch.Cause]int{warmwatch.CauseExpired: 1, warmwatch.CauseFullRelist: 1},
					ReceivedBytes: map[string]int64{"list": 177_000, "metadata": 13_400, "question": 410, "watch": 64_000, "other": 0},
				},
				{Informer: configs, Version: "v1", Resource: "configmaps", Objects: 1204, Relists: map[warmwatch.Cause]int{warmwatch.CauseFirstStart: 1}},
			},
		},
		Timeline: []warmwatch.Event{
			{Time: ago(10 * time.Second), Code: warmwatch.CodeServerFails, Informer: configs, Message: "dial tcp 10.0.0.1:443: connect: connection refused", Times: 5},
			{Time: ago(3 * time.Minute), Code: warmwatch.CodeNotWritten, Message: "write /var/lib/agent/cache.db: no space left on device"},
			{
				Time: ago(4 * time.Minute), Code: warmwatch.CodeRelisted, Informer: pods, Cause: string(warmwatch.CauseExpired), Message: "too old resource version: 4102 (4711)",
				Numbers: map[string]float64{"objects": 38, "added": 2, "updated": 1, "deleted": 3, "seconds": 0.25, "receivedBytes": 1_340_000},
			},
			{Time: ago(5 * time.Minute), Code: warmwatch.CodeStartedOver, Informer: pods, Handler: "network", Cause: "Backlog"},
			{Time: ago(50 * time.Minute), Code: warmwatch.CodeRecovered, Informer: pods, Cause: string(warmwatch.CodeServerFails), Numbers: seconds(62)},
			{Time: ago(2 * time.Hour), Code: warmwatch.CodeCaughtUp, Informer: pods, Numbers: seconds(0.089)},
			{Time: ago(2 * time.Hour), Code: warmwatch.CodeOpened},
		},
	}
}

// rendered returns a page without what is random in it.
func rendered(t *testing.T, format, name string, data any, o Options) string {
	t.Helper()
	w := httptest.NewRecorder()
	handler{opts: o}.write(w, httptest.NewRequest("GET", "/?format="+format, nil), 200, name, data)
	if w.Code != 200 {
		t.Fatalf("%s: %d %s", format, w.Code, w.Body)
	}
	return regexp.MustCompile(`nonce="[^"]*"`).ReplaceAllString(w.Body.String(), `nonce="…"`)
}

// TestThePageIsTheGoldenFile in each format; -update writes them.
func TestThePageIsTheGoldenFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		compared := []comparison{
			{pods, warmwatch.Difference{Missing: []cache.ObjectName{{Namespace: "ns", Name: "a"}}, Different: []cache.ObjectName{{Name: "b"}}}, ""},
			{"many", warmwatch.Difference{Surplus: make([]cache.ObjectName, 23)}, ""},
			{"x", warmwatch.Difference{}, "<refused>"},
		}
		for name, page := range map[string]struct {
			template string
			data     any
		}{
			"overview": {"overview", everything()},
			"compare":  {"compare", compared},
			"relist":   {"relist", repair{everything().Timeline[1:2], ""}},
			"objects":  {"objects", objects{Informer: pods, Keys: []string{"ns/a", "ns/b&c"}}},
			"object":   {"object", objects{Informer: pods, Key: "ns/a", Object: map[string]any{"data": "<b>"}}},
		} {
			for format := range contentTypes {
				golden := filepath.Join("testdata", name+"."+format)
				got := rendered(t, format, page.template, page.data, Options{Objects: true, Actions: true})
				if *update {
					if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(golden)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), got); diff != "" {
					t.Errorf("%s (-golden +got):\n%s", golden, diff)
				}
			}
		}
	})
}

// TestThePage: what the golden files must have, whoever writes them anew.
func TestThePage(t *testing.T) {
	page := everything()
	page.Timeline[0].Message = "<script>alert(1)</script>"
	page.Status.Informers[pods].Reconcilers[0].Err = errors.New("no such\n\x1b[31mdirectory")
	html := rendered(t, "html", "overview", page, Options{})
	for _, want := range []string{
		`<a href="https://github.com/warmwatch/warmwatch/blob/main/docs/operations.md#notwritten">NotWritten</a>`,
		`<a href="https://github.com/warmwatch/warmwatch/blob/main/docs/operations.md#startedover">StartedOver</a>`,
		"&lt;script&gt;alert(1)", "shop/cart-0", "Expired 1", "177.0 kB", "8m0s", "too old resource version",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	for _, wrong := range []string{"<script", "<form", "objects?", " src=", "<link"} {
		if strings.Contains(html, wrong) {
			t.Errorf("the page has %s", wrong)
		}
	}
	if n := len(page.Problems()); n != 3 {
		t.Errorf("%d problems: that of the file is one, although each informer has it", n)
	}
	plain := rendered(t, "text", "overview", page, Options{})
	if strings.ContainsAny(plain, "\x1b\r") || !strings.Contains(plain, "no such  [31mdirectory") {
		t.Errorf("the text commands a terminal, or has lost something:\n%s", plain)
	}
	var got struct{ Timeline []warmwatch.Event }
	if err := json.Unmarshal([]byte(rendered(t, "json", "overview", page, Options{})), &got); err != nil || time.Since(got.Timeline[0].Time) < 10*time.Second {
		t.Errorf("JSON has no times: %v, %+v", err, got)
	}
}

// TestSecretsAreNotShown, whatever Go type and form they have.
func TestSecretsAreNotShown(t *testing.T) {
	const told = "told"
	metadata := metav1.ObjectMeta{Name: "s", Annotations: map[string]string{lastApplied: told, "another": told}}
	typed := &corev1.Secret{ObjectMeta: metadata, Data: map[string][]byte{"k": []byte(told)}, StringData: map[string]string{"k": told}, Type: "Opaque"}
	for name, test := range map[string]struct {
		informer string
		obj      any
	}{
		"typed":            {"secrets/v1 (typed)", typed},
		"typed, in memory": {"*v1.Secret #1", typed},
		"unstructured": {"x", &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"annotations": map[string]any{"a": told}},
			"data": map[string]any{"k": told}, "stringData": told,
		}}},
		"metadata": {"secrets/v1 (metadata)", &metav1.PartialObjectMetadata{ObjectMeta: metadata}},
		"metadata, in memory": {"*v1.PartialObjectMetadata #1", &metav1.PartialObjectMetadata{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{lastApplied: told}},
		}},
		"of a transform": {"secrets/v1 (typed)", &struct{ Password string }{told}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := shown(test.informer, test.obj)
			if err != nil || len(got) == 0 {
				t.Fatal(got, err)
			}
			for _, secret := range []string{told, "dG9sZA"} { // In base64.
				if text := indented(got); strings.Contains(text, secret) {
					t.Errorf("shows %s", text)
				}
			}
		})
	}
	got, err := shown("configmaps/v1 (typed)", &corev1.ConfigMap{Data: map[string]string{"k": told}, ObjectMeta: metadata})
	if err != nil || !strings.Contains(indented(got["data"]), told) || !strings.Contains(indented(got["metadata"]), `"another": "told"`) {
		t.Errorf("of a ConfigMap: %v, %v", got, err)
	}
}
