package controlplane

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
)

// roundTrip sends one request on a connection of its own, reads the answer and
// wants status 200.
func roundTrip(client *http.Client, request *http.Request) ([]byte, error) {
	request.Close = true // No idle connection outlives a stopped server.
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s: %s", request.Method, request.URL.Path, response.Status, bytes.TrimSpace(body))
	}
	return body, nil
}
