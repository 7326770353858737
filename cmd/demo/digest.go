package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// digestOf does not depend on the order of the objects.
func digestOf[T metav1.Object](objects []T) *digest {
	lines := make([]string, len(objects))
	for i, object := range objects {
		lines[i] = fmt.Sprintf("%s %s %s", object.GetName(), object.GetUID(), object.GetResourceVersion())
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return &digest{Objects: len(objects), Sum: hex.EncodeToString(sum[:8])}
}
