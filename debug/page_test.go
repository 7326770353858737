package debug_test

import (
	"net/http"
	"testing"

	"github.com/warmwatch/warmwatch/debug"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
)

// BenchmarkPage is the page of 10 informers with 50,000 objects and 20 handlers.
func BenchmarkPage(b *testing.B) {
	h := debug.Handler(process.Busy(b), debug.Options{})
	for _, format := range []string{"html", "text", "json"} {
		b.Run("format="+format, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if w := request(h, http.MethodGet, "/?format="+format); w.Code != http.StatusOK {
					b.Fatal(w.Code)
				}
			}
		})
	}
}
