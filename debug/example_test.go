package debug_test

import (
	"log"
	"net/http"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/debug"
)

// The page on a port of its own, which only this host can reach, and a readiness check.
func ExampleHandler() {
	serve := func(c *warmwatch.Cache) error {
		mux := http.NewServeMux()
		mux.Handle("/debug/warmwatch/", http.StripPrefix("/debug/warmwatch", debug.Handler(c, debug.Options{Actions: true})))
		ready := debug.ReadyCheck(c)
		mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
			if err := ready(r); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
			}
		})
		return http.ListenAndServe("localhost:6060", mux)
	}
	var c *warmwatch.Cache // From warmwatch.Open.
	go func() { log.Print(serve(c)) }()
}
