// Package command has the command warmwatch, also for other programs, as one of their commands.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/warmwatch/warmwatch/persist"
)

// NewCommand returns the command. [ExitCode] returns the exit code for its error.
func NewCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "warmwatch",
		Short: "Show what is in a cache file of warmwatch, and mend it",
		Long: `Show what is in a cache file of warmwatch, and mend it.

INFORMER is an informer's name as in Status and the log, or a part of it that no other name has.
The exit code is 0 if all is well, 1 if verify or diff found something or get found nothing, 2 for wrong usage,
3 if a process holds the file, 4 if the file cannot be read or written, and 5 if the API server cannot be asked.`,
		SilenceUsage: true,
	}
	root.AddCommand(
		newStatus(), newList(), newGet(), newDump(), newPending(), newVerify(), newStats(), newDiff(),
		newRelist(), newCompact(), newForget(), newVersion(),
	)
	return root
}

// The exit codes.
const (
	exitFine = iota
	exitFindings
	exitUsage
	exitHeld
	exitUnreadable
	exitServer
)

// A codedError has the exit code that belongs to an error.
type codedError struct {
	error
	code int
}

func (e codedError) Unwrap() error { return e.error }

// ExitCode returns the exit code for an error of the command: 0 for nil, 1 if something was found, 2 for wrong usage, 3
// if a process holds the file, 4 if the file cannot be read or written, and 5 if the API server cannot be asked.
func ExitCode(err error) int {
	if err == nil {
		return exitFine
	}
	if coded, ok := errors.AsType[codedError](err); ok {
		return coded.code
	}
	return exitUsage // The error is cobra's own.
}

func usageError(format string, args ...any) error {
	return codedError{fmt.Errorf(format, args...), exitUsage}
}

// found returns the error of a verb that found n things, nil if n is 0.
func found(n int, what string) error {
	if n == 0 {
		return nil
	}
	return codedError{fmt.Errorf("%d %s", n, what), exitFindings}
}

// newVerb returns a subcommand. If an error of run has no exit code, the file has caused it.
func newVerb(use, short string, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: args, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			_, coded := errors.AsType[codedError](err)
			switch {
			case err == nil || coded:
				return err
			case errors.Is(err, persist.ErrLocked):
				return codedError{err, exitHeld}
			default:
				return codedError{err, exitUnreadable}
			}
		},
	}
}

// A reader has the flags of a verb that only reads.
type reader struct {
	copyTo string // The directory for a copy; empty: no copy is made.
	format format
}

// newReader returns a verb that only reads. run gets the open file, and returns what to print.
func newReader(use, short string, args cobra.PositionalArgs, run func(ctx context.Context, f *file, args []string) (*output, error)) (*cobra.Command, *reader) {
	r := &reader{format: formatTable}
	cmd := newVerb(use, short, args, func(cmd *cobra.Command, args []string) error {
		return r.read(cmd.Context(), args[0], func(f *file) error {
			out, err := run(cmd.Context(), f, args)
			if out == nil {
				return err
			}
			return errors.Join(err, out.print(cmd.OutOrStdout(), r.format))
		})
	})
	r.addTo(cmd)
	return cmd, r
}

// addTo adds the flags to a verb.
func (r *reader) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.copyTo, "copy", "", "copy the file into this directory and read the copy, if a process holds the file; without =DIR: the directory for temporary files")
	cmd.Flags().Lookup("copy").NoOptDefVal = os.TempDir()
	if r.format != "" {
		cmd.Flags().VarP(&r.format, "output", "o", "one of "+strings.Join(formats, ", "))
		_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	}
}

const libraryPath = "github.com/warmwatch/warmwatch"

func newVersion() *cobra.Command {
	return newVerb("version", "Print the version of the library", cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
		version, goVersion := "unknown", ""
		if info, ok := debug.ReadBuildInfo(); ok {
			goVersion = info.GoVersion
			if i := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == libraryPath }); i >= 0 {
				version = info.Deps[i].Version
			}
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "warmwatch", version, goVersion)
		return err
	})
}
