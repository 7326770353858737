// Command demo shows the main job of warmwatch on a real API server: an agent that
// was killed starts again from its file, resumes the watch where it stopped,
// delivers what it missed, deletions too, and relists with a diff only when the
// server no longer holds the history.
//
//	demo (this process)                     agent (the same program, killed with -9)
//	  │ starts kube-apiserver and etcd,       │ one informer for Pods, of warmwatch
//	  │ or uses the cluster of --kubeconfig   │ or of client-go, with one handler
//	  │ creates, changes, deletes Pods        │
//	  ├──── stdin: report, digest, stream ───▶│
//	  │◀─── stdout: synced, event, … (JSON) ──┤
//	  └ checks what was delivered             └ meter: bytes and requests
//
// In every scene an agent with warmwatch plays first, then one with a stock
// client-go informer, on the same server in the same state.
package main
