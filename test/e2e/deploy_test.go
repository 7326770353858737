package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
)

var deployDir = filepath.Join("..", "..", "deploy")

// TestTheManifestIsAccepted by the API server, each document with a dry run, and its ServiceAccount may do what the
// agent needs, and no more: the agent runs as the DaemonSet says, but outside of a Pod.
func TestTheManifestIsAccepted(t *testing.T) {
	t.Parallel()
	cp, err := controlplane.Start(t.Context(), controlplane.Options{APIServerFlags: []string{"--authorization-mode=RBAC"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	client := newClient(t, cp.Config())
	for _, name := range []string{"system:discovery", "system:public-info-viewer"} { // The agent does without them.
		if err := client.RbacV1().ClusterRoleBindings().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	set := createManifests(t, cp.Config())
	checkDaemonSet(t, set)

	token, err := client.CoreV1().ServiceAccounts(set.Namespace).CreateToken(t.Context(), set.Spec.Template.Spec.ServiceAccountName, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := cp.Config()
	config.BearerToken = token.Status.Token
	checkPermissions(t, newClient(t, config))

	const node = "here"
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), &pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	runDaemon(t, newDaemon(t, set, config, node))
}

// manifests returns the documents of the kustomization, in order.
func manifests(t *testing.T) (all []*unstructured.Unstructured) {
	t.Helper()
	read := func(name string) []byte {
		content, err := os.ReadFile(filepath.Join(deployDir, name))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	var kustomization struct{ Resources []string }
	if err := yaml.Unmarshal(read("kustomization.yaml"), &kustomization); err != nil {
		t.Fatal(err)
	}
	for _, name := range kustomization.Resources {
		documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(string(read(name))), 4096)
		for {
			obj := &unstructured.Unstructured{}
			if err := documents.Decode(obj); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(name, err)
			}
			all = append(all, obj)
		}
	}
	return all
}

// warnings collects what the API server warns of.
type warnings []string

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// createManifests has the API server check each document, and creates it. It returns the DaemonSet.
func createManifests(t *testing.T, config *rest.Config) *appsv1.DaemonSet {
	t.Helper()
	var warned warnings
	config.WarningHandler = &warned
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(httpClient.CloseIdleConnections)
	client, err := dynamic.NewForConfigAndClient(config, httpClient)
	if err != nil {
		t.Fatal(err)
	}
	createPodMonitors(t, client)
	var set appsv1.DaemonSet
	for _, obj := range manifests(t) {
		resource, _ := meta.UnsafeGuessKindToResource(obj.GroupVersionKind())
		in := dynamic.ResourceInterface(client.Resource(resource))
		if namespace := obj.GetNamespace(); namespace != "" {
			in = client.Resource(resource).Namespace(namespace)
		}
		for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} { // Others are in the Namespace.
			if _, err := in.Create(t.Context(), obj, metav1.CreateOptions{DryRun: dryRun, FieldValidation: metav1.FieldValidationStrict}); err != nil {
				t.Fatalf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
			}
		}
		switch obj.GetKind() {
		case "DaemonSet":
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &set); err != nil {
				t.Fatal(err)
			}
		case "PodMonitor":
			checkPodMonitor(t, obj, &set)
		}
	}
	if len(warned) > 0 {
		t.Errorf("the API server warns: %q", warned)
	}
	return &set
}

// checkPodMonitor: it finds the Pods of the DaemonSet, and their port.
func checkPodMonitor(t *testing.T, obj *unstructured.Unstructured, set *appsv1.DaemonSet) {
	t.Helper()
	labels, _, err := unstructured.NestedStringMap(obj.Object, "spec", "selector", "matchLabels")
	if err != nil || !maps.Equal(labels, set.Spec.Template.Labels) || obj.GetNamespace() != set.Namespace {
		t.Errorf("%v, selects %v in %s", err, labels, obj.GetNamespace())
	}
	endpoints, _, err := unstructured.NestedSlice(obj.Object, "spec", "podMetricsEndpoints")
	if err != nil || len(endpoints) != 1 {
		t.Fatal(endpoints, err)
	}
	endpoint := endpoints[0].(map[string]any)
	if port := set.Spec.Template.Spec.Containers[0].Ports[0].Name; endpoint["port"] != port || endpoint["path"] != "/metrics" {
		t.Errorf("scrapes %v, the port is %s", endpoint, port)
	}
}

// createPodMonitors has the API server know PodMonitors: the fields that most have, and no others.
func createPodMonitors(t *testing.T, client dynamic.Interface) {
	t.Helper()
	const definition = `{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "podmonitors.monitoring.coreos.com"},
		"spec": {
			"group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"plural": "podmonitors", "kind": "PodMonitor"},
			"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
				"spec": {"type": "object", "required": ["selector"], "properties": {
					"selector": {"type": "object", "properties": {"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}}},
					"podMetricsEndpoints": {"type": "array", "items": {"type": "object", "properties": {
						"port": {"type": "string"}, "path": {"type": "string"}, "interval": {"type": "string"}
					}}}
				}}
			}}}}]
		}
	}`
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON([]byte(definition)); err != nil {
		t.Fatal(err)
	}
	resource, _ := meta.UnsafeGuessKindToResource(obj.GroupVersionKind())
	if _, err := client.Resource(resource).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	monitors := client.Resource(schema.GroupVersionResource{Group: "monitoring.coreos.com", Version: "v1", Resource: "podmonitors"})
	eventually(t, "PodMonitors", func() error {
		_, err := monitors.List(t.Context(), metav1.ListOptions{})
		return err
	})
}

// checkDaemonSet checks what the API server does not.
func checkDaemonSet(t *testing.T, set *appsv1.DaemonSet) {
	t.Helper()
	pod := set.Spec.Template.Spec
	c := pod.Containers[0]
	if surge := set.Spec.UpdateStrategy.RollingUpdate.MaxSurge; surge == nil || surge.IntValue() != 0 || surge.StrVal != "" {
		t.Errorf("maxSurge %v", surge)
	}
	if s := c.SecurityContext; !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
		t.Errorf("security context %v", s)
	}
	if pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("seccomp %v", pod.SecurityContext.SeccompProfile)
	}
	if c.LivenessProbe != nil || c.ReadinessProbe == nil {
		t.Errorf("liveness %v, readiness %v", c.LivenessProbe, c.ReadinessProbe)
	}
	if grace := *pod.TerminationGracePeriodSeconds; grace < 10 { // Close waits 5 s, and commits.
		t.Errorf("terminationGracePeriodSeconds %d", grace)
	}
	for _, v := range pod.Volumes {
		if v.HostPath == nil || *v.HostPath.Type != corev1.HostPathDirectoryOrCreate {
			t.Errorf("volume %v", v)
		}
	}
	for _, e := range c.Env {
		if e.Name == "GOMEMLIMIT" {
			if limit := resource.MustParse(strings.TrimSuffix(e.Value, "B")); limit.Cmp(*c.Resources.Limits.Memory()) >= 0 {
				t.Errorf("GOMEMLIMIT %s, limit %s", e.Value, c.Resources.Limits.Memory())
			}
		}
	}
}

// checkPermissions asks for what the agent needs, and for what it does not.
func checkPermissions(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	get := func(path string) func() error {
		return func() error { return client.CoreV1().RESTClient().Get().AbsPath(path).Do(t.Context()).Error() }
	}
	for what, test := range map[string]struct {
		try     func() error
		allowed bool
	}{
		"the identity of the cluster": {get("/api/v1/namespaces/kube-system"), true},
		"schemas":                     {get("/openapi/v3"), true},
		"a schema":                    {get("/openapi/v3/api/v1"), true},
		"Pods":                        {get("/api/v1/pods"), true},
		"a Pod":                       {get("/api/v1/namespaces/default/pods/web"), false},
		"another Namespace":           {get("/api/v1/namespaces/default"), false},
		"Secrets":                     {get("/api/v1/secrets"), false},
		"discovery":                   {get("/apis"), false},
	} {
		eventually(t, what, func() error { // The authorizer knows a new role a moment later.
			err := test.try()
			if (err == nil) != test.allowed || err != nil && !apierrors.IsForbidden(err) {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
}

// A daemon is the agent with the arguments and variables of the DaemonSet.
type daemon struct {
	binary, dir   string
	status, probe string // Addresses.
	ready         string // The path of the readiness probe.
	args, env     []string
	grace         time.Duration
}

// newDaemon builds the agent. Its directories and addresses are others.
func newDaemon(t *testing.T, set *appsv1.DaemonSet, config *rest.Config, node string) *daemon {
	t.Helper()
	pod, dir := set.Spec.Template.Spec, t.TempDir()
	c := pod.Containers[0]
	d := &daemon{binary: filepath.Join(dir, "agent"), dir: dir, args: slices.Clone(c.Args), grace: time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", d.binary, "./agent")
	build.Dir = filepath.Join("..", "..", "examples")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d.status, d.probe, d.ready = freeAddress(t), freeAddress(t), c.ReadinessProbe.HTTPGet.Path
	replace := func(old, now string) {
		t.Helper()
		at := slices.IndexFunc(d.args, func(arg string) bool { return strings.Contains(arg, old) })
		if at < 0 {
			t.Fatalf("no %s in %q", old, d.args)
		}
		d.args[at] = strings.Replace(d.args[at], old, now, 1)
	}
	for _, m := range c.VolumeMounts {
		replace("="+m.MountPath, "="+filepath.Join(dir, m.Name))
	}
	replace("127.0.0.1:8080", d.status)
	replace(fmt.Sprint("=:", c.Ports[0].ContainerPort), "="+d.probe)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"it": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"it": {Token: config.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		CurrentContext: "it",
	}, kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	d.env = []string{"KUBECONFIG=" + kubeconfig}
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			e.Value = node
		}
		d.env = append(d.env, e.Name+"="+e.Value)
	}
	return d
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// runDaemon runs the agent twice: it starts from the server, then from disk, and it ends in time.
func runDaemon(t *testing.T, d *daemon) {
	t.Helper()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for _, from := range []string{"server", "disk"} {
		agent := exec.CommandContext(t.Context(), d.binary, d.args...)
		agent.Env, agent.Dir = d.env, d.dir
		var log strings.Builder
		agent.Stdout, agent.Stderr = &log, &log
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a ready agent that has caught up from "+from, func() error { return d.check(from) })
		asked := time.Now()
		if err := errors.Join(os.Remove(filepath.Join(d.dir, "pods", "default_web")), agent.Process.Signal(syscall.SIGTERM), agent.Wait()); err != nil || time.Since(asked) > d.grace {
			t.Errorf("ended after %v: %v\n%s", time.Since(asked), err, log.String())
		}
	}
}

// check asks the agent's readiness probe and its page, and looks for the file that it makes.
func (d *daemon) check(from string) error {
	if _, err := os.Stat(filepath.Join(d.dir, "pods", "default_web")); err != nil {
		return err
	}
	if _, err := getBody("http://" + d.probe + d.ready); err != nil {
		return err
	}
	metrics, err := getBody("http://" + d.probe + "/metrics")
	if err != nil {
		return err
	}
	if !bytes.Contains(metrics, []byte("\nwarmwatch_informer_objects{")) {
		return fmt.Errorf("metrics: %s", metrics)
	}
	body, err := getBody("http://" + d.status + "/?format=json")
	if err != nil {
		return err
	}
	var page struct {
		Status struct {
			Informers map[string]struct {
				Phase, StartedFrom string
				Objects            int
				Problems           []any
			}
		}
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return err
	}
	for _, st := range page.Status.Informers {
		if st.Phase == "Live" && st.StartedFrom == from && st.Objects == 1 && len(st.Problems) == 0 {
			return nil
		}
	}
	return fmt.Errorf("%s", body)
}

func getBody(url string) ([]byte, error) {
	resp, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return body, err
}
