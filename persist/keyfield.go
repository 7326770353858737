package persist

import (
	"strconv"
	"strings"
)

// KeyField returns a part of a key that has several, with its length before it: no other part begins
// as it does.
func KeyField(text string) string { return strconv.Itoa(len(text)) + "/" + text + "/" }

// CutKeyField cuts the first part off a key of [KeyField]s.
func CutKeyField(key string) (text, rest string, ok bool) {
	length, rest, _ := strings.Cut(key, "/")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n >= len(rest) || rest[n] != '/' {
		return "", "", false
	}
	return rest[:n], rest[n+1:], true
}
