package controllerruntime_test

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/informers"
)

// TestAGeneratedFactoryGoesOnAfterARestart: one that informer-gen has made for other resources than client-go's.
func TestAGeneratedFactoryGoesOnAfterARestart(t *testing.T) {
	path := newPath(t)
	for _, startedFrom := range []string{"server", "disk"} {
		c, err := warmwatch.Open(t.Context(), path, warmwatch.Options{})
		if err != nil {
			t.Fatal(err)
		}
		cfg := shared.Config()
		cfg.Wrap(c.WrapTransport)
		httpClient, err := rest.HTTPClientFor(cfg)
		if err != nil {
			t.Fatal(err)
		}
		client, err := clientset.NewForConfigAndClient(cfg, httpClient)
		if err != nil {
			t.Fatal(err)
		}
		if startedFrom == "server" {
			_, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), widgets(), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		factory := externalversions.NewSharedInformerFactory(client, 0)
		factory.InformerFor(&apiextensionsv1.CustomResourceDefinition{}, informers.Generated[clientset.Interface](
			c, &apiextensionsv1.CustomResourceDefinition{}, client.ApiextensionsV1().CustomResourceDefinitions()))
		lister := factory.Apiextensions().V1().CustomResourceDefinitions().Lister()
		stop := make(chan struct{})
		factory.Start(stop)
		factory.WaitForCacheSync(t.Context().Done())
		if all, err := lister.List(labels.Everything()); err != nil || len(all) != 1 || all[0].Name != widgets().Name {
			t.Errorf("the lister has %v, %v", all, err)
		}
		if n := len(c.Status().Informers); n != 1 {
			t.Errorf("%d informers in the Cache, expected 1", n)
		}
		for name, st := range c.Status().Informers {
			if st.StartedFrom != startedFrom || st.Err != nil {
				t.Errorf("%s started from %s, %v; expected %s", name, st.StartedFrom, st.Err, startedFrom)
			}
		}
		close(stop)
		factory.Shutdown()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		utilnet.CloseIdleConnectionsFor(httpClient.Transport)
	}
}

func widgets() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com",
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
}
