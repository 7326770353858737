// Package bubble runs tests in virtual time.
package bubble

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"
)

// Start runs an informer until stop is called, or the test ends.
func Start(t *testing.T, informer cache.SharedInformer) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	synctest.Wait()
	return stop
}

// Advance lets time pass, and everything that it makes happen.
func Advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Settle is longer than any delay: backoff of the Reflector, commits.
func Settle() { Advance(2 * time.Minute) }

// Run runs a test in a bubble of testing/synctest.
func Run(t *testing.T, test func(*testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}
