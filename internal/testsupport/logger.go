package testsupport

import (
	"slices"
	"strings"
	"sync"

	"k8s.io/klog/v2"

	"github.com/go-logr/logr/funcr"
)

// LoggerOf returns a logger, and the lines with this text that it has logged.
func LoggerOf(text string) (logger *klog.Logger, logged func() []string) {
	var mu sync.Mutex
	var lines []string
	l := funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(args, text) {
			lines = append(lines, args)
		}
	}, funcr.Options{})
	return &l, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(lines)
	}
}
