package workload

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// managers create varied objects; each object has one of them, and a second one below.
var (
	managers    = []string{"kube-controller-manager", "helm", "argocd-controller", "kubectl-client-side-apply"}
	controllers = []string{"secrets-injector", "policy-controller", "rollout-operator"}
)

// variety makes what differs from object to object.
type variety struct{ *rand.Rand }

func varietyOf(kind string, seed int) variety {
	h := fnv.New64a()
	_, _ = h.Write([]byte(kind)) // A hash's Write never fails.
	return variety{rand.New(rand.NewPCG(uint64(seed), h.Sum64()))}
}

func (v variety) word() string { return words[v.IntN(len(words))] }

func (v variety) name() string { return v.word() + "-" + v.word() + "-" + v.hex(5) }

func (v variety) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(v.Uint32())
	}
	return b
}

func (v variety) hex(digits int) string { return fmt.Sprintf("%x", v.bytes((digits+1)/2))[:digits] }

func (v variety) digest() string { return "sha256:" + v.hex(64) }

func (v variety) address() string {
	return fmt.Sprintf("10.%d.%d.%d", v.IntN(256), v.IntN(256), v.IntN(256))
}

func (v variety) time() metav1.Time {
	return metav1.NewTime(created.Add(time.Duration(v.IntN(90*86400)) * time.Second).UTC())
}

// variedMeta is the metadata of the i-th object.
func variedMeta(kind string, i int) metav1.ObjectMeta {
	v := varietyOf(kind, i)
	app, hash := v.word()+"-"+v.word(), v.hex(10)
	return metav1.ObjectMeta{
		Name: fmt.Sprintf("%s-%s-%05x", app, hash, i),
		Labels: map[string]string{
			"app": app, "app.kubernetes.io/instance": v.name(), "team": v.word(), "pod-template-hash": hash,
			"app.kubernetes.io/version": fmt.Sprintf("v%d.%d.%d", v.IntN(9), v.IntN(30), v.IntN(9)),
		},
		Annotations: map[string]string{
			"checksum/config":                     v.hex(64),
			v.word() + ".example.com/" + v.word(): v.name(),
			"network.example.com/status":          fmt.Sprintf(`[{"name":"net-%s","ips":[%q],"mac":"0a:58:%s","default":true}]`, v.word(), v.address(), v.hex(8)),
		},
	}
}

// VariedPod returns the i-th of many Pods that have as little in common as those of a real
// cluster: images with digests, hashes, addresses, an environment of their own. Stored, each
// takes about 7.7 KB of protobuf. The status is to be written by itself.
func VariedPod(i int) *corev1.Pod {
	v := varietyOf("spec", i)
	pod := Pod(i)
	pod.ObjectMeta = variedMeta("pods", i)
	pod.Spec.NodeName = fmt.Sprintf("node-%04d", v.IntN(1000))
	pod.Spec.ServiceAccountName = "default"
	pod.Spec.Containers, pod.Spec.Volumes = nil, nil
	for n := range 1 + v.IntN(3) {
		c := container(fmt.Sprintf("%s-%d", v.word(), n), v.word(), int32(1024+v.IntN(60_000)))
		c.Image = fmt.Sprintf("registry.example.com/%s/%s@%s", v.word(), v.word(), v.digest())
		c.Args = append(c.Args, "--"+v.word()+"="+v.name(), "--"+v.word()+"-"+v.word()+"="+v.hex(8))
		for range 3 + v.IntN(5) {
			c.Env = append(c.Env, corev1.EnvVar{
				Name: strings.ToUpper(v.word() + "_" + v.word() + "_" + v.hex(3)), Value: v.word() + "://" + v.name() + "/" + v.hex(12),
			})
		}
		c.Resources.Requests[corev1.ResourceMemory] = *resource.NewQuantity(int64(1+v.IntN(2000))<<20, resource.BinarySI)
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/" + v.word(), Port: intstr.FromInt32(c.Ports[0].ContainerPort)},
		}}
		volume := fmt.Sprintf("%s-%d", v.word(), n)
		c.VolumeMounts = []corev1.VolumeMount{{Name: volume, MountPath: "/etc/" + v.name()}}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: v.name()}},
		}})
	}
	pod.Status = variedStatus(varietyOf("status", i), pod.Spec.Containers)
	return pod
}

func variedStatus(v variety, containers []corev1.Container) corev1.PodStatus {
	s := status()
	s.HostIP, s.PodIP, s.StartTime = v.address(), v.address(), new(v.time())
	s.HostIPs, s.PodIPs = []corev1.HostIP{{IP: s.HostIP}}, []corev1.PodIP{{IP: s.PodIP}}
	for i := range s.Conditions {
		s.Conditions[i].LastTransitionTime = v.time()
	}
	for _, c := range containers {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: c.Image, ContainerID: "containerd://" + v.hex(64),
			Ready: true, Started: new(true), RestartCount: int32(v.IntN(20)),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: v.time()}},
		})
	}
	return s
}

// VariedConfigMap returns the i-th of many ConfigMaps of 16 KB, of which a third is as random
// as certificates.
func VariedConfigMap(i int) *corev1.ConfigMap {
	v := varietyOf("ConfigMap", i)
	return &corev1.ConfigMap{ObjectMeta: variedMeta("configmaps", i), Data: map[string]string{
		v.word() + ".yaml":   prose(i, 10_900),
		v.word() + "-ca.crt": base64.StdEncoding.EncodeToString(v.bytes(2_800)),
		"checksums":          v.hex(700),
	}}
}

// VariedGadget returns the i-th of many custom resources. Stored, they take about 4 KB of JSON.
func VariedGadget(i int) *unstructured.Unstructured {
	v, gadget := varietyOf("Gadget", i), Gadget(i)
	spec, ofStatus := gadget.Object["spec"].(map[string]any), gadget.Object["status"].(map[string]any)
	for _, endpoint := range spec["endpoints"].([]any) {
		e := endpoint.(map[string]any)
		e["address"], e["port"], e["token"] = v.address(), int64(v.IntN(65536)), v.hex(16)
	}
	spec["image"], spec["caBundle"] = "registry.example.com/"+v.word()+"@"+v.digest(), base64.StdEncoding.EncodeToString(v.bytes(200))
	spec["selector"] = map[string]any{v.word(): v.name(), "hash": v.hex(10)}
	ofStatus["observedHash"] = v.hex(64)
	for _, condition := range ofStatus["conditions"].([]any) {
		c := condition.(map[string]any)
		c["lastTransitionTime"], c["message"] = v.time().Format(time.RFC3339), v.word()+" "+v.name()+" "+v.address()
	}
	meta := variedMeta(Gadgets.Resource, i)
	gadget.SetName(meta.Name)
	gadget.SetLabels(meta.Labels)
	gadget.SetAnnotations(meta.Annotations)
	return gadget
}

// createVaried makes the i-th varied object, as one manager, and writes to it as another: the
// status of a Pod as a kubelet, an annotation of the rest.
func (c *Clients) createVaried(ctx context.Context, gvr schema.GroupVersionResource, namespace string, i int) (err error) {
	var object runtime.Object
	second, subresources := controllers[i%len(controllers)], []string(nil)
	change := map[string]any{"metadata": map[string]any{"annotations": map[string]any{second + "/hash": varietyOf(second, i).hex(40)}}}
	switch gvr.Resource {
	case "pods":
		pod := VariedPod(i)
		second, subresources, change, object = "kubelet", []string{"status"}, map[string]any{"status": pod.Status}, pod
	case "configmaps":
		object = VariedConfigMap(i)
	default:
		object = VariedGadget(i)
	}
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		u = &unstructured.Unstructured{}
		if u.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(object); err != nil {
			return err
		}
		u.SetGroupVersionKind(gvr.GroupVersion().WithKind(map[string]string{"pods": "Pod", "configmaps": "ConfigMap"}[gvr.Resource]))
	}
	client := c.dynamic.Resource(gvr).Namespace(namespace)
	if _, err := client.Create(ctx, u, metav1.CreateOptions{FieldManager: managers[i%len(managers)]}); err != nil {
		return err
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, u.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: second}, subresources...)
	return err
}
