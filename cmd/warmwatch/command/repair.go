package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmwatch/warmwatch/internal/deletions"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/reflector"
	"github.com/warmwatch/warmwatch/workqueue"
)

// writing are the options of a DB that the command writes to. If a process holds the file, Open fails at once.
var writing = persist.Options{LockTimeout: -time.Second, Logger: &silent}

// write opens a file for fn, which writes to it. An unusable file is left as it is.
func write(ctx context.Context, path string, fn func(*file) error) error {
	if err := usable(ctx, path); err != nil {
		return err
	}
	db, err := persist.Open(ctx, path, writing)
	if err != nil {
		return err
	}
	if _, _, err := db.Problem(); err != nil {
		return errors.Join(err, db.Close()) // Since usable has looked.
	}
	f, err := newFile(db, path)
	if err == nil {
		err = fn(f)
	}
	return errors.Join(err, db.Close())
}

// usable returns an error for a file that [persist.Open] would set aside, create, or not open.
func usable(ctx context.Context, path string) error {
	return (&reader{}).read(ctx, path, func(*file) error {
		resolved, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		if _, err := os.Lstat(resolved + persist.StartingSuffix); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(fmt.Errorf("a process died while it opened %s, or found it damaged; start the program, which uses the file or sets it aside", path), err)
		}
		return nil
	})
}

func newRelist() *cobra.Command {
	all := false
	cmd := newVerb("relist FILE {INFORMER | --all}", "Make the next start list and compare all objects", cobra.RangeArgs(1, 2), func(cmd *cobra.Command, args []string) error {
		if all == (len(args) == 2) {
			return usageError("relist needs either INFORMER or --all")
		}
		return write(cmd.Context(), args[0], func(f *file) error {
			chosen, err := f.chosen(args)
			for _, i := range chosen {
				if err == nil {
					err = f.relist(cmd, i)
				}
			}
			return err
		})
	})
	cmd.Flags().BoolVar(&all, "all", false, "all informers of the file")
	return cmd
}

// relist notes in an informer's checkpoint that a relist is due, which writes every record anew.
func (f *file) relist(cmd *cobra.Command, i *informer) error {
	if i.record != nil {
		i.record.Rewrite = true
		if err := f.Update(func(b *persist.Batch) {
			b.Put(i.bucket(reflector.CheckpointBucket), reflector.CheckpointKey, i.record.Encode())
		}); err != nil {
			return err
		}
	} // Else the next start lists anyway.
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: the next start lists\n", i.name)
	return err
}

func newCompact() *cobra.Command {
	return newVerb("compact FILE", "Write the file anew, without its free pages", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		if err := usable(cmd.Context(), args[0]); err != nil {
			return err
		}
		before, after, err := persist.Compact(cmd.Context(), args[0], writing)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, was %s\n", args[0], sizeOf(after), sizeOf(before))
		return err
	})
}

func newForget() *cobra.Command {
	handler := ""
	cmd := newVerb("forget FILE INFORMER", "Remove the data of an informer, or only those of one of its handlers", cobra.ExactArgs(2), func(cmd *cobra.Command, args []string) error {
		return write(cmd.Context(), args[0], func(f *file) error {
			i, err := f.find(args[1])
			if err != nil {
				return err
			}
			name := i.name
			if handler != "" {
				name, err = handler+" of "+name, f.forgetHandler(i, handler)
			} else {
				err = f.forget(i)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "forgot %s\n", name)
			return err
		})
	})
	cmd.Flags().StringVar(&handler, "handler", "", "name of a durable handler, reconciler or workqueue: remove only what is kept for it")
	return cmd
}

func (f *file) forget(i *informer) error {
	return f.Update(func(b *persist.Batch) {
		for _, name := range i.buckets {
			b.Drop(i.bucket(name))
		}
		b.Delete(reflector.BookmarksBucket, i.space)
		b.Delete(persist.Bucket{Space: unusedSpace, Name: unusedBucket}, i.space)
	})
}

// forgetHandler does what ForgetDurable does.
func (f *file) forgetHandler(i *informer, name string) error {
	handlers, err := f.pending(i)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(handlers, func(b *backlog) bool { _, its, _ := strings.Cut(b.Handler, "/"); return its == name }) {
		return usageError("%s has no handler %q", i.name, name)
	}
	log, err := queue.NewLog(queue.Options{DB: f.DB, Space: i.space, Logger: &silent})
	if err != nil {
		return err
	}
	return errors.Join(log.Forget(name), workqueue.NewStore(f.DB, i.space, silent).Forget(name), deletions.New(f.DB, i.space).Forget(name))
}
