package record

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// newTestPod returns a Pod as a cluster has many of: 3.4 KB of protobuf, a
// third of it managedFields.
func newTestPod(tb testing.TB) *corev1.Pod {
	tb.Helper()
	pod := &corev1.Pod{}
	if err := json.Unmarshal([]byte(testPodJSON), pod); err != nil {
		tb.Fatal(err)
	}
	return pod
}

const testPodJSON = `{
 "metadata": {
  "name": "checkout-7c9d6f5b8d-x2x7q", "generateName": "checkout-7c9d6f5b8d-", "namespace": "shop-production",
  "uid": "0f8fad5b-d9cb-469f-a165-70867728950e", "resourceVersion": "184467440", "creationTimestamp": "2026-03-01T09:30:10Z",
  "labels": {"app.kubernetes.io/name": "checkout", "app.kubernetes.io/part-of": "shop", "pod-template-hash": "7c9d6f5b8d", "team": "payments"},
  "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "9090", "kubectl.kubernetes.io/restartedAt": "2026-02-28T22:01:44Z"},
  "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "checkout-7c9d6f5b8d", "uid": "7d444840-9dc0-11d1-b245-5ffdce74fad2", "controller": true, "blockOwnerDeletion": true}],
  "managedFields": [
   {"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "time": "2026-03-01T09:30:10Z", "fieldsType": "FieldsV1",
    "fieldsV1": {"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/restartedAt":{},"f:prometheus.io/port":{},"f:prometheus.io/scrape":{}},"f:generateName":{},"f:labels":{".":{},"f:app.kubernetes.io/name":{},"f:app.kubernetes.io/part-of":{},"f:pod-template-hash":{},"f:team":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"7d444840-9dc0-11d1-b245-5ffdce74fad2\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"checkout\"}":{".":{},"f:env":{".":{},"k:{\"name\":\"LOG_LEVEL\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:imagePullPolicy":{},"f:livenessProbe":{".":{},"f:failureThreshold":{},"f:httpGet":{".":{},"f:path":{},"f:port":{},"f:scheme":{}}},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:protocol":{}}},"f:resources":{".":{},"f:limits":{".":{},"f:memory":{}},"f:requests":{".":{},"f:cpu":{},"f:memory":{}}}}},"f:dnsPolicy":{},"f:restartPolicy":{},"f:schedulerName":{},"f:terminationGracePeriodSeconds":{}}}},
   {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": "2026-03-01T09:30:15Z", "fieldsType": "FieldsV1", "subresource": "status",
    "fieldsV1": {"f:status":{"f:conditions":{"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},"f:containerStatuses":{},"f:hostIP":{},"f:phase":{},"f:podIP":{},"f:podIPs":{".":{},"k:{\"ip\":\"10.244.3.17\"}":{".":{},"f:ip":{}}},"f:startTime":{}}}}]
 },
 "spec": {
  "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "512Mi"}}, {"name": "kube-api-access-4xk2p", "projected": {"defaultMode": 420, "sources": [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}, {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}}],
  "containers": [{"name": "checkout", "image": "registry.example.com/shop/checkout:v2.41.0@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "args": ["--listen=:8080", "--metrics=:9090"],
   "ports": [{"containerPort": 8080, "protocol": "TCP"}, {"name": "metrics", "containerPort": 9090, "protocol": "TCP"}],
   "env": [{"name": "LOG_LEVEL", "value": "info"}, {"name": "DB_URL", "valueFrom": {"secretKeyRef": {"name": "checkout-db", "key": "url"}}}, {"name": "GOMEMLIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "0"}}}],
   "resources": {"limits": {"memory": "256Mi"}, "requests": {"cpu": "250m", "memory": "128Mi"}},
   "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}, {"name": "kube-api-access-4xk2p", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
   "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
   "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent", "securityContext": {"runAsNonRoot": true, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
  "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "serviceAccountName": "checkout", "serviceAccount": "checkout", "nodeName": "ip-10-0-3-17.eu-central-1.compute.internal", "securityContext": {}, "schedulerName": "default-scheduler",
  "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}, {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
  "priority": 0, "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority"
 },
 "status": {
  "phase": "Running", "hostIP": "10.0.3.17", "podIP": "10.244.3.17", "podIPs": [{"ip": "10.244.3.17"}], "startTime": "2026-03-01T09:30:10Z", "qosClass": "Burstable",
  "conditions": [{"type": "Initialized", "status": "True", "lastTransitionTime": "2026-03-01T09:30:10Z"}, {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T09:30:15Z"}, {"type": "ContainersReady", "status": "True", "lastTransitionTime": "2026-03-01T09:30:15Z"}, {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-01T09:30:10Z"}],
  "containerStatuses": [{"name": "checkout", "state": {"running": {"startedAt": "2026-03-01T09:30:12Z"}}, "ready": true, "started": true, "restartCount": 0, "image": "registry.example.com/shop/checkout:v2.41.0", "imageID": "registry.example.com/shop/checkout@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "containerID": "containerd://2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"}]
 }
}`
