package main

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// kind is one that has a controller.
type kind struct {
	APIVersion, Kind string
	Objects          int

	resource schema.GroupVersionResource
	object   func(i int) client.Object // The i-th.
}

// scenarios by name; percent of the objects.
var scenarios = map[string]func(percent int) []kind{
	"manager": func(percent int) []kind {
		return some(percent, pods(20_000), configMaps(5_000), gadgets(5_000))
	},
	// https://github.com/k8ssandra/cass-operator/issues/947
	"cass-operator": func(percent int) []kind {
		return some(percent, pods(6_554), configMaps(2_845),
			kind{"v1", "Service", 2_561, corev1.SchemeGroupVersion.WithResource("services"), service},
			kind{"discovery.k8s.io/v1", "EndpointSlice", 2_533, discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), endpointSlice},
			kind{"v1", "Event", 27_000, corev1.SchemeGroupVersion.WithResource("events"), event},
			kind{"v1", "Secret", 3_000, corev1.SchemeGroupVersion.WithResource("secrets"), secret})
	},
}

func some(percent int, kinds ...kind) []kind {
	for i := range kinds {
		kinds[i].Objects = max(kinds[i].Objects*percent/100, 1)
	}
	return kinds
}

func pods(n int) kind {
	return kind{"v1", "Pod", n, corev1.SchemeGroupVersion.WithResource("pods"), func(i int) client.Object {
		pod := workload.Pod(i)
		pod.ManagedFields = nil
		return pod
	}}
}

func configMaps(n int) kind {
	return kind{"v1", "ConfigMap", n, corev1.SchemeGroupVersion.WithResource("configmaps"), func(i int) client.Object { return workload.ConfigMap(i) }}
}

func gadgets(n int) kind {
	return kind{workload.Gadgets.GroupVersion().String(), "Gadget", n, workload.Gadgets, func(i int) client.Object { return workload.Gadget(i) }}
}

func meta(kind string, i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: fmt.Sprintf("%s-%05x", kind, i),
		Labels: map[string]string{
			"app.kubernetes.io/name": fmt.Sprintf("app-%04d", i/workload.PodsPerApp), "app.kubernetes.io/managed-by": "warmwatch-workload",
		},
	}
}

func service(i int) client.Object {
	return &corev1.Service{ObjectMeta: meta("service", i), Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, // The range of addresses is smaller.
		Selector:  map[string]string{"app": fmt.Sprintf("app-%04d", i)},
		Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}, {Name: "metrics", Port: 9090, TargetPort: intstr.FromInt32(9090)},
		},
	}}
}

func endpointSlice(i int) client.Object {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: meta("slice", i), AddressType: discoveryv1.AddressTypeIPv4}
	for n := range 8 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", i>>8&255, i&255, n)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(fmt.Sprintf("node-%03d", (i+n)%200)),
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("app-%04d-%05x", i, n)},
		})
	}
	return slice
}

func event(i int) client.Object {
	return &corev1.Event{
		ObjectMeta:     meta("event", i),
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: namespace, Name: fmt.Sprintf("app-%04d-%05x", i/50, i)},
		Reason:         "BackOff",
		Message:        fmt.Sprintf("Back-off restarting failed container server in pod app-%04d-%05x", i/50, i),
		Source:         corev1.EventSource{Component: "kubelet", Host: fmt.Sprintf("node-%03d", i%200)},
		Type:           corev1.EventTypeWarning, Count: int32(i % 100),
	}
}

func secret(i int) client.Object {
	return &corev1.Secret{ObjectMeta: meta("secret", i), Data: map[string][]byte{
		"tls.crt": []byte(strings.Repeat(fmt.Sprintf("%064d\n", i), 20)), "tls.key": []byte(strings.Repeat(fmt.Sprintf("%064x\n", i), 26)),
	}}
}
