package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
)

// etcdServer is etcd with one data directory and fixed ports.
type etcdServer struct {
	name    string // Unlike that of any other etcd.
	path    string
	dir     string // Holds data/, snapshot/ and the log.
	url     string
	peerURL string
	flags   []string
	proc    *process
}

func (e *etcdServer) dataDir() string     { return filepath.Join(e.dir, "etcd") }
func (e *etcdServer) snapshotDir() string { return filepath.Join(e.dir, "etcd-snapshot") }

func (e *etcdServer) start(ctx context.Context) error {
	args := []string{
		"--name=" + e.name,
		"--data-dir=" + e.dataDir(),
		"--listen-client-urls=" + e.url,
		"--advertise-client-urls=" + e.url,
		"--listen-peer-urls=" + e.peerURL,
		"--initial-advertise-peer-urls=" + e.peerURL,
		"--initial-cluster=" + e.name + "=" + e.peerURL,
		"--unsafe-no-fsync", // The data is thrown away with the run.
		"--quota-backend-bytes=8589934592",
		"--log-level=warn",
	}
	proc, err := startProcess(ctx, e.dir, e.path, append(args, e.flags...), e.healthy)
	if err != nil {
		return err
	}
	e.proc = proc
	return nil
}

func (e *etcdServer) stop() error {
	err := e.proc.stop()
	e.proc = nil
	return err
}

// healthy also makes sure that it is this etcd which answers: had another process
// taken the port, this one would be about to end.
func (e *etcdServer) healthy(ctx context.Context) error {
	var answer struct {
		Members []struct {
			Name string `json:"name"`
		} `json:"members"`
	}
	if err := e.call(ctx, "/v3/cluster/member/list", map[string]any{"linearizable": true}, &answer); err != nil {
		return err
	}
	if len(answer.Members) != 1 || answer.Members[0].Name != e.name {
		return fmt.Errorf("another etcd is listening at %s", e.url)
	}
	return nil
}

// revision is etcd's current one.
func (e *etcdServer) revision(ctx context.Context) (int64, error) {
	var answer struct {
		Header struct {
			Revision int64 `json:"revision,string"`
		} `json:"header"`
	}
	// etcd serves its gRPC API as JSON too; bytes are base64. The key is "\x00".
	err := e.call(ctx, "/v3/kv/range", map[string]any{"key": "AA=="}, &answer)
	return answer.Header.Revision, err
}

// bump writes until the current revision is at least the given one, which etcdutl
// does with `snapshot restore --bump-revision`. Each write is one revision.
func (e *etcdServer) bump(ctx context.Context, least int64) error {
	at, err := e.revision(ctx)
	for ; err == nil && at < least; at++ {
		err = e.call(ctx, "/v3/kv/put", map[string]any{"key": "L2J1bXA=", "value": "AA=="}, nil) // "/bump"
	}
	return err
}

// compact drops the whole history: only the current revision stays readable.
func (e *etcdServer) compact(ctx context.Context) error {
	at, err := e.revision(ctx)
	if err != nil {
		return err
	}
	return e.call(ctx, "/v3/kv/compaction", map[string]any{"revision": at, "physical": true}, nil)
}

func (e *etcdServer) call(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := roundTrip(http.DefaultClient, request)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

// saveSnapshot expects etcd to be suspended, loadSnapshot that it is stopped.
func (e *etcdServer) saveSnapshot() error { return replaceDir(e.snapshotDir(), e.dataDir()) }
func (e *etcdServer) loadSnapshot() error { return replaceDir(e.dataDir(), e.snapshotDir()) }

func replaceDir(to, from string) error {
	if _, err := os.Stat(from); err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.CopyFS(to, os.DirFS(from))
}
