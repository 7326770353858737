// Package keyfield joins names and keys to one key of a bucket: each with its length before it, so
// that whatever they contain, the keys of a name are those that begin with its field.
package keyfield

import (
	"strconv"
	"strings"
)

// Of returns a part of a key that has several, with its length before it: no other part begins
// as it does.
func Of(text string) string { return strconv.Itoa(len(text)) + "/" + text + "/" }

// Cut cuts the first part off a key of [Of].
func Cut(key string) (text, rest string, ok bool) {
	length, rest, _ := strings.Cut(key, "/")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n >= len(rest) || rest[n] != '/' {
		return "", "", false
	}
	return rest[:n], rest[n+1:], true
}
