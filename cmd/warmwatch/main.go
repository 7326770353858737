// Command warmwatch shows what is in a cache file, and mends it. See docs/command.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/warmwatch/warmwatch/cmd/warmwatch/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // The second signal ends the process.
	os.Exit(command.ExitCode(command.NewCommand().ExecuteContext(ctx)))
}
