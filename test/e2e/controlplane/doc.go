// Package controlplane runs a real kube-apiserver on a real etcd, on loopback,
// for tests and demonstrations.
//
// It exists beside controller-runtime's envtest because the tests do to the
// server what envtest does not offer: restart it on the same port with the same
// certificates and the same data, compact its history, and put back an older
// copy of its etcd.
//
//	Start ── etcd ──── kube-apiserver ──── Config()
//	          │               │
//	     CompactEtcd    StopAPIServer / StartAPIServer / RestartAPIServer
//	          │               │
//	          └─ SnapshotEtcd / RestoreEtcd, RestoreEtcdBumped: both stopped, files copied, both started
//
// There are no controllers, no scheduler and no kubelet: what is created stays as
// it is. Service account admission is off, so that Pods can be created in any
// namespace. Every request needs the token that Config carries, and may do
// anything.
package controlplane
