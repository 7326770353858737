package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// An object is a record without its content.
type object struct {
	Key             string    `json:"key"`
	UID             types.UID `json:"uid,omitempty"`
	ResourceVersion string    `json:"resourceVersion,omitempty"`
	Type            string    `json:"type,omitempty"`
	Bytes           int       `json:"bytes"`
	Error           string    `json:"error,omitempty"` // Why it cannot be read.
}

func objectOf(it *persist.Item) object {
	o := object{Key: it.Key, Bytes: it.SizeBytes()}
	payload, err := it.Payload()
	if err == nil {
		var r record.Record
		r, err = record.Parse(payload)
		o.UID, o.ResourceVersion, o.Type = r.UID, r.ResourceVersion, r.TypeName
	}
	if err != nil {
		o.Error = err.Error()
	}
	return o
}

func newList() *cobra.Command {
	cmd, _ := newReader("ls FILE [INFORMER]", "List the informers, or the objects of one informer", cobra.RangeArgs(1, 2), func(_ context.Context, f *file, args []string) (*output, error) {
		if len(args) == 1 {
			return f.listInformers(), nil
		}
		i, err := f.find(args[1])
		if err != nil {
			return nil, err
		}
		objects, names := []object{}, []string(nil)
		t := table{header: []string{"KEY", "UID", "RESOURCEVERSION", "SIZE", "TYPE"}, wide: 2}
		err = f.scan(i.bucket(indexer.ObjectsBucket), func(it *persist.Item) error {
			o := objectOf(it)
			objects, names = append(objects, o), append(names, o.Key)
			if o.Error != "" {
				o.UID, o.ResourceVersion = "damaged", "-"
			}
			t.add(o.Key, string(o.UID), o.ResourceVersion, sizeOf(int64(o.Bytes)), o.Type)
			return nil
		})
		return &output{objects, names, []table{t}}, err
	})
	return cmd
}

func (f *file) listInformers() *output {
	type listed struct {
		Informer string `json:"informer"`
		Space    string `json:"space"`
		Objects  *int   `json:"objects"` // Null if the state cannot be read.
	}
	out := &output{}
	all, t := []listed{}, table{header: []string{"INFORMER", "OBJECTS", "SPACE"}, wide: 1}
	for _, i := range f.informers {
		l := listed{Informer: i.name, Space: i.space}
		if i.index != nil {
			l.Objects = new(i.index.Len())
		}
		all, out.names = append(all, l), append(out.names, i.name)
		t.add(i.name, i.objects(), i.space)
	}
	out.value, out.tables = all, []table{t}
	return out
}

// objects returns the number of objects, for people.
func (i *informer) objects() string {
	if i.index == nil {
		return "-"
	}
	return strconv.Itoa(i.index.Len())
}

func newGet() *cobra.Command {
	show := false
	cmd, _ := newReader("get FILE INFORMER KEY", "Print an object as YAML, or as --output says", cobra.ExactArgs(3), func(_ context.Context, f *file, args []string) (*output, error) {
		i, err := f.find(args[1])
		if err != nil {
			return nil, err
		}
		out := &output{names: args[2:]}
		found, err := f.View(i.bucket(indexer.ObjectsBucket), args[2], func(it *persist.Item) error {
			payload, err := it.Payload()
			if err == nil {
				out.value, err = i.valueOf(indexer.ObjectsBucket, it.Key, payload, show)
			}
			return err
		})
		if err == nil && !found {
			err = codedError{fmt.Errorf("%s has no object %q", i.name, args[2]), exitFindings}
		}
		if err != nil {
			return nil, err
		}
		return out, nil
	})
	addShowSecrets(cmd, &show)
	return cmd
}

func addShowSecrets(cmd *cobra.Command, show *bool) {
	cmd.Flags().BoolVar(show, "show-secrets", false, "do not mask the contents of Secrets")
}

// A line is a value of the file.
type line struct {
	Informer string `json:"informer"` // Or the space.
	Bucket   string `json:"bucket"`
	Key      string `json:"key"`
	Value    any    `json:"value,omitempty"`
	Error    string `json:"error,omitempty"` // Why it cannot be read.
}

func newDump() *cobra.Command {
	r, show := &reader{}, false
	cmd := newVerb("dump FILE", "Print everything as lines of JSON", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		return r.read(cmd.Context(), args[0], func(f *file) error {
			lines := json.NewEncoder(cmd.OutOrStdout())
			lines.SetEscapeHTML(false)
			return f.each(func(i *informer, bucket string, it *persist.Item) error {
				l := line{Informer: i.name, Bucket: bucket, Key: keyOf(i.bucket(bucket), it.Key)}
				payload, err := it.Payload()
				if err == nil {
					l.Value, err = i.valueOf(bucket, it.Key, payload, show)
				}
				if err != nil {
					l.Value, l.Error = nil, err.Error()
				}
				return lines.Encode(l)
			})
		})
	})
	r.addTo(cmd)
	addShowSecrets(cmd, &show)
	return cmd
}

// each calls fn with each value of the file. After a bucket that cannot be read it goes on with the next one.
func (f *file) each(fn func(i *informer, bucket string, it *persist.Item) error) error {
	byspace := map[string]*informer{}
	for _, i := range f.informers {
		byspace[i.space] = i
	}
	buckets, err := f.Buckets()
	for _, b := range buckets {
		i := byspace[b.Space]
		if i == nil {
			i = &informer{name: b.Space, space: b.Space}
		}
		err = errors.Join(err, f.scan(b, func(it *persist.Item) error { return fn(i, b.Name, it) }))
	}
	return err
}
