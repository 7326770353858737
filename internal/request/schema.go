package request

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// maxSchemaBytes is much more than the answer to /openapi/v3 has, about 10 KB.
const maxSchemaBytes = 4 << 20

// Schema asks the server for the hash of its schema of the objects that the request is about: of
// their group and version. It changes when the server may read a stored object in another way.
func (s *Seen) Schema(ctx context.Context) (hash string, err error) {
	resp, err := s.Get(ctx, "/openapi/v3")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("/openapi/v3: %s", resp.Status)
	}
	var root struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxSchemaBytes)).Decode(&root); err != nil {
		return "", fmt.Errorf("/openapi/v3: %w", err)
	}
	path := "apis/" + s.Asked.Resource.GroupVersion().String()
	if s.Asked.Resource.Group == "" {
		path = "api/" + s.Asked.Resource.Version
	}
	u, err := url.Parse(root.Paths[path].ServerRelativeURL)
	if err == nil {
		hash = u.Query().Get("hash")
	}
	if hash == "" {
		return "", fmt.Errorf("/openapi/v3 has no hash of %s", path)
	}
	return hash, nil
}
