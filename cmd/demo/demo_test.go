package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
)

// The demonstration runs this binary as its agent.
func TestMain(m *testing.M) {
	agent.Main(nil)
	os.Exit(runTests(m))
}

// runTests expects that no demonstration leaves files.
func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "demo-test-")
	if err == nil {
		err = os.Setenv("TMPDIR", dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	code := m.Run()
	if left, err := filepath.Glob(filepath.Join(dir, "warmwatch-demo-*")); err != nil || len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left behind:", left, err)
		return 1
	}
	return code
}

func TestDemoPlaysEveryScene(t *testing.T) {
	t.Parallel()
	r := runForTest(t, options{Objects: 200, Output: outputJSON})
	checkScenes(t, r)
	if got := skipped(r); got != nil {
		t.Errorf("scenes were skipped: %v", got)
	}
}

func TestDemoInUsersClusterLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	cp, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	client, err := kubernetes.NewForConfig(cp.Config())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	controllers := make(chan error, 1)
	go func() { controllers <- playControllers(ctx, client) }()

	r := runForTest(t, options{Objects: 200, Output: outputJSON, Kubeconfig: cp.Kubeconfig()})
	checkScenes(t, r)
	if got := skipped(r); !slices.Equal(got, []string{"history-gone"}) {
		t.Errorf("in a user's cluster these scenes were skipped: %v", got)
	}
	cancel()
	if err := <-controllers; err != nil {
		t.Errorf("controllers: %v", err)
	}
	namespaces, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, namespace := range namespaces.Items {
		if strings.HasPrefix(namespace.Name, namespacePrefix) {
			t.Errorf("namespace %s is still there", namespace.Name)
		}
	}
}

func runForTest(t *testing.T, o options) *result {
	t.Helper()
	var out bytes.Buffer
	ok, err := runDemo(t.Context(), o, &out, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		t.Error("not every scene did what it says")
	}
	var r result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("stdout is not one JSON object: %v\n%s", err, out.Bytes())
	}
	return &r
}

func skipped(r *result) (names []string) {
	for _, s := range r.Scenes {
		if s.Skipped != "" {
			names = append(names, s.Name)
		}
	}
	return names
}

func checkScenes(t *testing.T, r *result) {
	t.Helper()
	var names []string
	for _, s := range r.Scenes {
		names = append(names, s.Name)
		if s.Skipped == "" && !s.played() {
			t.Errorf("scene %s has no figures", s.Name)
		}
		for _, c := range s.Claims {
			if !c.OK {
				t.Errorf("scene %s: not true: %s: %s", s.Name, c.Text, c.Detail)
			}
		}
	}
	want := []string{"cold-start", "nothing-changed", "caught-up", "six-changes", "unreachable", "history-gone", "plain-handler"}
	if !slices.Equal(names, want) {
		t.Errorf("scenes %v, want %v", names, want)
	}
}

// playControllers does what a cluster's controllers do for a namespace: it gets a
// service account, and when it is deleted, it is emptied first.
func playControllers(ctx context.Context, client kubernetes.Interface) error {
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, namespace := range namespaces.Items {
			if !strings.HasPrefix(namespace.Name, namespacePrefix) {
				continue
			}
			if err := playController(ctx, client, &namespace); err != nil {
				return false, err
			}
		}
		return false, nil
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func playController(ctx context.Context, client kubernetes.Interface, namespace *corev1.Namespace) error {
	if namespace.DeletionTimestamp == nil {
		accounts := client.CoreV1().ServiceAccounts(namespace.Name)
		if _, err := accounts.Get(ctx, "default", metav1.GetOptions{}); err == nil {
			return nil
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		_, err := accounts.Create(ctx, account, metav1.CreateOptions{})
		return err
	}
	err := client.CoreV1().Pods(namespace.Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	if err != nil {
		return err
	}
	namespace.Spec.Finalizers = nil
	_, err = client.CoreV1().Namespaces().Finalize(ctx, namespace, metav1.UpdateOptions{})
	return err
}

func TestOptionsThatAreWrongHaveAClearError(t *testing.T) {
	for args, want := range map[string]string{
		"--objects=3":                "at least 20",
		"--objects=many":             "expected a valid 64 bit int",
		"--output=yaml":              `must be one of "text","json"`,
		"--kubeconfig=/no/such/file": "no such file",
		"--context=x":                "goes with --kubeconfig",
		"extra":                      "unexpected argument extra",
	} {
		if _, err := parseOptions([]string{args}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", args, err, want)
		}
	}
	if _, err := parseOptions(nil); err != nil {
		t.Errorf("no flags: %v", err)
	}
}

func TestMissingBinariesAreNamed(t *testing.T) {
	_, err := runDemo(t.Context(), options{Objects: 20, BinDir: t.TempDir()}, &bytes.Buffer{}, t.Output())
	if !errors.Is(err, controlplane.ErrNoBinaries) {
		t.Errorf("error %v, want ErrNoBinaries", err)
	}
}

// TestServeKeepsAServerUp that the kubeconfig it names leads to, until ctx is done.
func TestServeKeepsAServerUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	defer r.Close()
	served := make(chan error, 1)
	go func() {
		ok, err := runDemo(ctx, options{Serve: true}, w, io.Discard)
		if err == nil && !ok {
			err = errors.New("not ok")
		}
		served <- errors.Join(err, w.Close())
	}()
	lines := bufio.NewScanner(r)
	lines.Scan()
	path, found := strings.CutPrefix(lines.Text(), "export KUBECONFIG=")
	if !found {
		cancel()
		t.Fatalf("said %q: %v", lines.Text(), <-served)
	}
	lines.Scan() // The rest.
	config, err := agent.LoadConfig(path, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the kubeconfig is left: %v", err)
	}
}
