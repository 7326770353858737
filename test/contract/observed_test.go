package contract_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// unstreamed is a ListerWatcher whose watches cannot begin with its list: they bring something else.
type unstreamed struct{ *cache.ListWatch }

func (unstreamed) IsWatchListSemanticsUnSupported() bool { return true }

// TestANewInformerThatAsksForMoreThanOneThing has all of it, and the next process begins with a list.
func TestANewInformerThatAsksForMoreThanOneThing(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	for range 2 {
		a := process.NewAgent(t, path, api)
		client := kubernetes.NewForConfigOrDie(a.Config).CoreV1()
		informer := a.Make(unstreamed{&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := client.ConfigMaps("ns").List(ctx, o)
				if err != nil {
					return nil, err
				}
				more, err := client.ConfigMaps("other").List(ctx, o)
				if err != nil {
					return nil, err
				}
				for _, cm := range more.Items {
					cm.Namespace = "other" // The server has one object for all.
					list.Items = append(list.Items, cm)
				}
				return list, nil
			},
			WatchFuncWithContext: client.ConfigMaps("ns").Watch,
		}}, &corev1.ConfigMap{})
		a.Run(informer)
		process.Until(func() bool { return informer.Status().Phase == warmwatch.PhaseLive })
		if got := source.Versions(informer.GetStore().List()); !slices.Equal(got, []string{"ns/a@4", "other/a@4"}) {
			t.Errorf("the store has %v", got)
		}
		if err := informer.Status().Err; err == nil || !strings.Contains(err.Error(), `"ns"`) || !strings.Contains(err.Error(), `"other"`) {
			t.Errorf("the error is %v", err)
		}
		a.Stop()
		want := []string{"LIST /api/v1/namespaces/ns/configmaps", "LIST /api/v1/namespaces/other/configmaps"}
		if d := cmp.Diff(want, slices.Compact(api.TakeLists())); d != "" {
			t.Errorf("lists (-want +got):\n%s", d)
		}
	}
}

// TestANewInformerThatConvertsToMetadata asks for whole objects, and that is what it is for.
func TestANewInformerThatConvertsToMetadata(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	for life, want := range []int{1, 0} {
		a := process.NewAgent(t, path, api)
		client := kubernetes.NewForConfigOrDie(a.Config).CoreV1().ConfigMaps("ns")
		informer := a.Make(unstreamed{&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := client.List(ctx, o)
				if err != nil {
					return nil, err
				}
				metadata := &metav1.PartialObjectMetadataList{ListMeta: list.ListMeta}
				for _, cm := range list.Items {
					metadata.Items = append(metadata.Items, metav1.PartialObjectMetadata{ObjectMeta: cm.ObjectMeta})
				}
				return metadata, nil
			},
			WatchFuncWithContext: client.Watch,
		}}, &metav1.PartialObjectMetadata{})
		a.Run(informer)
		process.ExpectOne(t, informer)
		if err := informer.Status().Err; err != nil {
			t.Error(err)
		}
		a.Stop()
		if n := len(api.TakeLists()); n != want {
			t.Errorf("process %d asks for %d lists, expected %d", life, n, want)
		}
	}
}

func toMetadata(obj any) (any, error) {
	if cm, ok := obj.(*corev1.ConfigMap); ok {
		return &metav1.PartialObjectMetadata{ObjectMeta: cm.ObjectMeta}, nil
	}
	return obj, nil
}

// TestATypeThatWasNotGivenIsInStatus: an informer that is given its stored type does not adopt another.
func TestATypeThatWasNotGivenIsInStatus(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		p := process.Launch(t, testsupport.Path(t), source.New(t, source.ConfigMap("a")), nil)
		if err := p.Informer.SetTransform(toMetadata); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		if err := p.Informer.Status().Err; err == nil || !strings.Contains(err.Error(), "InformerOptions.Transformed") {
			t.Error(err)
		}
	})
}

// TestCredentialsThatComeOverHTTP do not hide the request: a RoundTripper may get them with the
// context of the request, by another client.
func TestCredentialsThatComeOverHTTP(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	tokens := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(tokens.Close)
	for life, want := range []int{1, 0} {
		a := process.NewAgent(t, path, api)
		a.Config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return credentials{rt, tokens.URL} })
		informer := a.Make(a.ConfigMaps("ns", process.NoTweak), &corev1.ConfigMap{})
		a.Run(informer)
		process.ExpectOne(t, informer)
		if err := informer.Status().Err; err != nil {
			t.Error(err)
		}
		a.Stop()
		if n := len(api.TakeLists()); n != want {
			t.Errorf("process %d asks for %d lists, expected %d", life, n, want)
		}
	}
}

// credentials gets a token for each request.
type credentials struct {
	http.RoundTripper
	url string
}

func (c credentials) RoundTrip(r *http.Request) (*http.Response, error) {
	get, err := http.NewRequestWithContext(r.Context(), http.MethodGet, c.url, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(get)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return c.RoundTripper.RoundTrip(r)
}
