package request

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// maxSchemaBytes is much more than the length of the answer to /openapi/v3, about 10 KB.
const maxSchemaBytes = 4 << 20

// Schemas asks the server for hashes of its schemas, by group and version as in paths: api/v1,
// apis/GROUP/VERSION. A hash changes when the server may read a stored object in another way.
func (s *Seen) Schemas(ctx context.Context) (map[string]string, error) {
	resp, err := s.Get(ctx, "/openapi/v3")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/openapi/v3: %s", resp.Status)
	}
	var root struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxSchemaBytes)).Decode(&root); err != nil {
		return nil, fmt.Errorf("/openapi/v3: %w", err)
	}
	hashes := map[string]string{}
	for path, at := range root.Paths {
		u, err := url.Parse(at.ServerRelativeURL)
		if err == nil && u.Query().Get("hash") != "" {
			sum := sha256.Sum256([]byte(u.Query().Get("hash"))) // The server's hash is long, and each checkpoint has one.
			hashes[path] = hex.EncodeToString(sum[:16])
		}
	}
	return hashes, nil
}

// GroupVersionPath returns the key in the result of Schemas for the objects of the request.
func (s *Seen) GroupVersionPath() string {
	if s.Asked.Resource.Group == "" {
		return "api/" + s.Asked.Resource.Version
	}
	return "apis/" + s.Asked.Resource.GroupVersion().String()
}
