package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/persist"
)

// A difference between the file and the server.
type difference struct {
	Informer   string `json:"informer"`
	Difference string `json:"difference"` // missing in the file, surplus in the file, different
	Key        string `json:"key"`
	File       string `json:"file,omitempty"` // uid@resourceVersion
	Server     string `json:"server,omitempty"`
}

// checkAgain is how long a difference must last to count.
var checkAgain = time.Second // Only tests change it.

func newDiff() *cobra.Command {
	rules, overrides := clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{}
	r := &reader{format: formatTable}
	cmd := newVerb("diff FILE [INFORMER]", "List objects that are missing, surplus or different compared with the API server", cobra.RangeArgs(1, 2), func(cmd *cobra.Command, args []string) error {
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
		if err != nil {
			return codedError{err, exitServer}
		}
		client, err := metadata.NewForConfig(config)
		if err != nil {
			return codedError{err, exitServer}
		}
		var note sync.Once
		compare := func() (all []difference, err error) {
			err = r.read(cmd.Context(), args[0], func(f *file) (err error) {
				note.Do(func() { noteOtherCluster(cmd, client, f) })
				all, err = f.diff(cmd.Context(), client, args)
				return err
			})
			return all, err
		}
		all, err := compare()
		if err == nil && len(all) > 0 {
			all, err = lasting(cmd.Context(), all, compare)
		}
		if err != nil {
			return err
		}
		return errors.Join(differences(all).print(cmd.OutOrStdout(), r.format), found(len(all), "differences of uid or resourceVersion"))
	})
	r.addTo(cmd)
	cmd.Flags().StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig; by default the one of kubectl")
	cmd.Flags().StringVar(&overrides.CurrentContext, "context", "", "context of the kubeconfig")
	return cmd
}

// noteOtherCluster prints a note if the file seems to be of another cluster. It may be wrong: Options.ClusterID can be
// anything.
func noteOtherCluster(cmd *cobra.Command, client metadata.Interface, f *file) {
	namespace, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Get(cmd.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil { // It may not be allowed.
		return
	}
	for _, i := range f.informers {
		if i.record != nil && i.record.ClusterID != "" && i.record.ClusterID != string(namespace.UID) {
			cmd.PrintErrf("Note: the file is of the cluster %s, but the API server is of %s\n", i.record.ClusterID, namespace.UID)
			return
		}
	}
}

// lasting returns the differences that are still there after checkAgain. The other objects changed between the read of
// the file and the list.
func lasting(ctx context.Context, before []difference, compare func() ([]difference, error)) ([]difference, error) {
	select {
	case <-time.After(checkAgain):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	all, err := compare()
	return slices.DeleteFunc(all, func(d difference) bool {
		return !slices.ContainsFunc(before, func(b difference) bool {
			return b.Informer == d.Informer && b.Key == d.Key && b.Difference == d.Difference
		})
	}), err
}

func differences(all []difference) *output {
	out, t := &output{value: append([]difference{}, all...)}, table{header: []string{"DIFFERENCE", "OBJECT", "FILE", "SERVER", "INFORMER"}}
	for _, d := range all {
		t.add(d.Difference, d.Key, cmp.Or(d.File, "-"), cmp.Or(d.Server, "-"), d.Informer)
		out.names = append(out.names, d.Key)
	}
	out.tables = []table{t}
	return out
}

// diff compares the chosen informers with the server.
func (f *file) diff(ctx context.Context, client metadata.Interface, args []string) (all []difference, err error) {
	chosen, err := f.chosen(args)
	if err != nil {
		return nil, err
	}
	for _, i := range chosen {
		id := i.identity()
		if id == (checkpoint.Identity{}) {
			return nil, fmt.Errorf("%s: its checkpoint does not say what to list", i.name)
		}
		server, err := list(ctx, client, id)
		if err != nil {
			return nil, codedError{fmt.Errorf("list %s: %w", i.name, err), exitServer}
		}
		some, err := f.diffInformer(i, server)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func (f *file) diffInformer(i *informer, server map[string]string) (all []difference, err error) {
	err = f.scan(i.bucket(indexer.ObjectsBucket), func(it *persist.Item) error {
		o := objectOf(it)
		d := difference{i.name, "different", it.Key, versionOf(string(o.UID), o.ResourceVersion), server[it.Key]}
		switch {
		case d.Server == "":
			d.Difference = "surplus"
		case o.Error != "":
			d.File = "damaged"
		case d.File == d.Server || d.File == versionOf("", ""): // A transform may have removed both.
			d.Difference = ""
		}
		delete(server, it.Key)
		if d.Difference != "" {
			all = append(all, d)
		}
		return nil
	})
	for key, version := range server {
		all = append(all, difference{i.name, "missing", key, "", version})
	}
	slices.SortFunc(all, func(a, b difference) int { return strings.Compare(a.Key, b.Key) })
	return all, err
}

func versionOf(uid, resourceVersion string) string { return uid + "@" + resourceVersion }

// list returns the versions of the server's objects of an identity, by key.
func list(ctx context.Context, client metadata.Interface, id checkpoint.Identity) (map[string]string, error) {
	resource := client.Resource(schema.GroupVersionResource{Group: id.Group, Version: id.Version, Resource: id.Resource}).Namespace(id.Namespace)
	versions := map[string]string{}
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return resource.List(ctx, o) })
	o := metav1.ListOptions{LabelSelector: id.LabelSelector, FieldSelector: id.FieldSelector, ShardSelector: id.ShardSelector}
	err := pages.EachListItem(ctx, o, func(obj runtime.Object) error {
		m := obj.(*metav1.PartialObjectMetadata)
		versions[cache.MetaObjectToName(m).String()] = versionOf(string(m.UID), m.ResourceVersion)
		return nil
	})
	return versions, err
}
