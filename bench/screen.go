package main

import (
	"fmt"
	"io"
	"time"

	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// screen shows a run to a person: figures on out, what takes time on progressOut.
type screen struct {
	out, progressOut io.Writer
	begin            time.Time
}

// tell is for what takes time.
func (s *screen) tell(format string, args ...any) {
	elapsed := time.Since(s.begin).Round(time.Second)
	fmt.Fprintf(s.progressOut, "[%5s] "+format+"\n", append([]any{elapsed}, args...)...)
}

func (s *screen) progress(what string) workload.Progress {
	next := time.Now().Add(5 * time.Second)
	return func(done, total int) {
		if done < total && time.Now().Before(next) {
			return
		}
		next = time.Now().Add(5 * time.Second)
		s.tell("%s: %s of %s", what, thousands(done), thousands(total))
	}
}
