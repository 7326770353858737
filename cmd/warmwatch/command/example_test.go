package command_test

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/warmwatch/warmwatch/cmd/warmwatch/command"
)

// An agent whose own program has the command: `agent warmwatch status FILE` works in its container.
func ExampleNewCommand() {
	agent := &cobra.Command{Use: "agent"}
	agent.AddCommand(command.NewCommand())
	err := agent.ExecuteContext(context.Background())
	os.Exit(command.ExitCode(err))
}
