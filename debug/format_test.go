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

const pods = `pods/v1 (typed) fields="spec.nodeName=n1"`

// everything is a page that has something in each place, two of them hostile.
func everything() overview {
	ago := func(d time.Duration) time.Time { return time.Now().UTC().Add(-d) }
	fileProblem := warmwatch.Problem{Code: warmwatch.CodeNotWritten, Message: "no space left on device", Since: ago(3 * time.Minute)}
	return overview{
		Status: warmwatch.Status{
			Name: "agent", Path: "/var/lib/agent/cache.db", Err: errors.New("no space left on device"),
			SetAside: []warmwatch.SetAside{{Path: "/var/lib/agent/cache.db.corrupt-1", Time: ago(time.Hour), Reason: "a page is bad"}},
			Problems: []warmwatch.Problem{fileProblem},
			Informers: map[string]warmwatch.InformerStatus{
				pods: {
					Phase: warmwatch.PhaseLive, StartedFrom: "disk", Cause: warmwatch.CauseResumed, Reason: "at resourceVersion 41",
					ResourceVersion: "4711", LastContact: ago(time.Second), Objects: 38, Relists: 2, Resumes: 1,
					Problems: []warmwatch.Problem{fileProblem},
					Handlers: []warmwatch.HandlerStatus{
						{Name: "network", Durable: true, Undelivered: 100000, UndeliveredBytes: 1 << 27, Callback: "ns/hangs", CallbackSince: ago(7 * time.Minute), Skipped: 1},
						{Name: "retired", Durable: true, Absent: true, InitialList: true},
						{Name: "*main.handler"},
					},
					Reconcilers: []warmwatch.ReconcilerStatus{{
						Status: workqueue.Status{Name: "files", Keys: 4}, Reconciling: "ns/slow", ReconcilingSince: ago(9 * time.Second),
						Err: errors.New("reconcile ns/bad:\nno such \x1b[31mdirectory"),
					}},
				},
				"*v1.ConfigMap #1": {
					Phase: warmwatch.PhaseDisconnected, StartedFrom: "server", Cause: warmwatch.CauseFirstStart,
					Problems: []warmwatch.Problem{{Code: warmwatch.CodeServerFails, Message: "<script>alert(1)</script>", Since: ago(time.Minute)}},
				},
				"without an example object": {Problems: []warmwatch.Problem{{Code: warmwatch.CodeFromMemory, Message: "client-go's own"}}},
			},
			Workqueues: []workqueue.Status{{Name: "cleanup", Absent: true, Keys: 2}},
		},
		Metrics: warmwatch.Metrics{
			Name: "agent", Persistent: true, Degraded: map[warmwatch.Code]int{warmwatch.CodeNotWritten: 1},
			File: persist.Metrics{
				Bytes: 12_345_678, FreeBytes: 999, Commits: 120, FailedCommits: 3, WrittenBytes: 5_000_000_000, PendingBytes: 1 << 20,
				Unwritten: ago(2 * time.Minute), OldestSnapshot: ago(time.Second), Damages: 1, DamagedValues: 2,
			},
			Informers: []warmwatch.InformerMetrics{{
				Informer: pods, Version: "v1", Resource: "pods", Objects: 38, Live: true, CaughtUpAfter: 89 * time.Millisecond,
				Relists:       map[warmwatch.Cause]int{warmwatch.CauseExpired: 1, warmwatch.CauseFullRelist: 1},
				ReceivedBytes: map[string]int64{"list": 1_770_000, "watch": 13_400, "question": 0},
				Handlers: []warmwatch.HandlerMetrics{
					{Name: "network", OldestUndelivered: ago(8 * time.Minute), Restarts: map[string]int64{"Backlog": 1}},
				},
				Reconcilers: []warmwatch.ReconcilerMetrics{{Name: "files", Succeeded: 30, Failed: 6, Requeued: 1}},
			}},
		},
		Timeline: []warmwatch.Event{
			{Time: ago(10 * time.Second), Code: warmwatch.CodeServerFails, Informer: "*v1.ConfigMap #1", Message: "connection refused", Times: 5},
			{Time: ago(3 * time.Minute), Code: warmwatch.CodeRelisted, Informer: pods, Cause: warmwatch.CauseExpired, Numbers: map[string]float64{"added": 2, "seconds": 0.25}},
			{Time: ago(5 * time.Minute), Code: warmwatch.CodeStartedOver, Informer: pods, Handler: "network", Message: "Backlog"},
			{Time: ago(time.Hour), Code: warmwatch.CodeOpened},
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
	html := rendered(t, "html", "overview", everything(), Options{})
	for _, want := range []string{
		`<a href="https://github.com/warmwatch/warmwatch/blob/main/docs/operations.md#notwritten">NotWritten</a>`,
		`<a href="https://github.com/warmwatch/warmwatch/blob/main/docs/operations.md#startedover">StartedOver</a>`,
		"&lt;script&gt;alert(1)", "ns/hangs", "ns/slow", "Expired&nbsp;1", "1.8 MB", "8m0s", "resourceVersion 41",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	for _, wrong := range []string{"<script", "<form", "objects?", " src=", "<link", "no space left on device</td></tr>\n<tr><td class=\"bad\"><a href=\"https://github.com/warmwatch/warmwatch/blob/main/docs/operations.md#notwritten\""} {
		if strings.Contains(html, wrong) {
			t.Errorf("the page has %s", wrong)
		}
	}
	plain := rendered(t, "text", "overview", everything(), Options{})
	if strings.ContainsAny(plain, "\x1b\r") || !strings.Contains(plain, "no such  [31mdirectory") {
		t.Errorf("the text commands a terminal, or has lost something:\n%s", plain)
	}
	var got struct{ Timeline []warmwatch.Event }
	if err := json.Unmarshal([]byte(rendered(t, "json", "overview", everything(), Options{})), &got); err != nil || time.Since(got.Timeline[0].Time) < 10*time.Second {
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
