// Package workload fills a cluster with objects that look like those of real
// clusters and that nobody runs.
package workload

import (
	_ "embed" // For managedFields.
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SchedulerName keeps the Pods unscheduled in a cluster that has a scheduler.
const SchedulerName = "nobody"

// PodsPerApp is how many Pods share the label "app".
const PodsPerApp = 50

// managedFields is what kube-apiserver v1.36.3 records for the creation of a Pod
// of this package.
//
//go:embed managedfields.json
var managedFields string

var created = metav1.Unix(1767225600, 0)

// Pods returns n different Pods, without a namespace. Each takes about 3.5 KB as
// protobuf, more than half of it managedFields. They have no owner, lest a garbage
// collector takes them, and satisfy the restricted pod security standard.
func Pods(n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = Pod(i)
	}
	return pods
}

// Pod returns the i-th of Pods.
func Pod(i int) *corev1.Pod {
	app := fmt.Sprintf("app-%04d", i/PodsPerApp)
	hash := fmt.Sprintf("%08x", uint32(i/PodsPerApp+1)*2654435761)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%s-%05x", app, hash, i),
			Labels: map[string]string{
				"app":                          app,
				"app.kubernetes.io/component":  []string{"frontend", "backend", "worker"}[i%3],
				"app.kubernetes.io/managed-by": "warmwatch-workload",
				"pod-template-hash":            hash,
			},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager:    "workload",
				Operation:  metav1.ManagedFieldsOperationUpdate,
				APIVersion: "v1",
				Time:       new(created),
				FieldsType: "FieldsV1",
				FieldsV1:   metav1.NewFieldsV1(managedFields),
			}},
		},
		Spec: corev1.PodSpec{
			SchedulerName:                SchedulerName,
			AutomountServiceAccountToken: new(bool),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   new(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{container("main", app, 8080), container("sidecar", app, 9102)},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: app + "-config"},
				}}},
			},
		},
		Status: status(),
	}
}

func container(name, app string, port int32) corev1.Container {
	return corev1.Container{
		Name:  name,
		Image: "registry.example.com/" + app + "/" + name + ":v1.27.3",
		Args:  []string{"--log-level=info", fmt.Sprintf("--listen=:%d", port)},
		Ports: []corev1.ContainerPort{{Name: name, ContainerPort: port, Protocol: corev1.ProtocolTCP}},
		Env: []corev1.EnvVar{
			{Name: "APP_NAME", Value: app},
			{Name: "DATABASE_URL", Value: "postgres://" + app + ".databases.svc.cluster.local:5432/main"},
			{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("100m"),
				corev1.ResourceMemory: resource.MustParse("128Mi"),
			},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "config", MountPath: "/etc/" + name, ReadOnly: true},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

func status() corev1.PodStatus {
	s := corev1.PodStatus{
		Phase:     corev1.PodRunning,
		QOSClass:  corev1.PodQOSBurstable,
		StartTime: new(created),
	}
	for _, condition := range []corev1.PodConditionType{
		corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady,
	} {
		s.Conditions = append(s.Conditions, corev1.PodCondition{
			Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: created,
		})
	}
	return s
}
