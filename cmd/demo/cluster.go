package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // Whatever --kubeconfig asks for.
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
)

// namespacePrefix begins the name of the namespace that the demonstration makes.
const namespacePrefix = "warmwatch-demo-"

// cluster is where the scenes play.
type cluster struct {
	controlPlane *controlplane.ControlPlane // nil: the user's cluster.
	kubeconfig   string                     // For agents.
	context      string
	config       *rest.Config
	client       kubernetes.Interface
	namespace    string
	version      string
}

// openCluster starts a control plane, or connects to the user's cluster, and makes
// a namespace. The caller calls close, also after an error.
func openCluster(ctx context.Context, o options, dir string) (*cluster, error) {
	c := &cluster{kubeconfig: o.Kubeconfig, context: o.Context}
	if o.Kubeconfig == "" {
		if err := c.start(ctx, o, dir); err != nil {
			return c, err
		}
	}
	var err error
	c.config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: c.context},
	).ClientConfig()
	if err != nil {
		return c, fmt.Errorf("%s: %w", c.kubeconfig, err)
	}
	c.config.QPS = -1 // No limit; the server may have one.
	c.config.WarningHandler = rest.NoWarnings{}
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return c, err
	}
	version, err := c.client.Discovery().ServerVersion()
	if err != nil {
		return c, fmt.Errorf("%s: %w", c.config.Host, err)
	}
	c.version = version.GitVersion
	return c, c.createNamespace(ctx)
}

func (c *cluster) start(ctx context.Context, o options, dir string) error {
	var err error
	if c.controlPlane, err = controlplane.Start(ctx, controlplane.Options{BinDir: o.BinDir}); err != nil {
		return err
	}
	c.kubeconfig = filepath.Join(dir, "kubeconfig")
	return writeKubeconfig(c.controlPlane.Config(), c.kubeconfig)
}

func writeKubeconfig(cfg *rest.Config, file string) error {
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"demo": {Server: cfg.Host, CertificateAuthorityData: cfg.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"demo": {Token: cfg.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"demo": {Cluster: "demo", AuthInfo: "demo"}},
		CurrentContext: "demo",
	}, file)
}

func (c *cluster) createNamespace(ctx context.Context) error {
	namespace, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: namespacePrefix},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a namespace: %w", err)
	}
	c.namespace = namespace.Name
	if c.controlPlane != nil {
		return nil
	}
	// A cluster with controllers admits Pods once it has made the account.
	for range 300 {
		_, err = c.client.CoreV1().ServiceAccounts(c.namespace).Get(ctx, "default", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return err
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("the namespace got no service account: %w", err)
}

// close stops the control plane, or removes the namespace. It works after Ctrl-C
// too, and is idempotent.
func (c *cluster) close(tell func(format string, args ...any)) error {
	if c.controlPlane != nil {
		return c.controlPlane.Stop()
	}
	if c.namespace == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	tell("removing namespace %s", c.namespace)
	err := c.client.CoreV1().Namespaces().Delete(ctx, c.namespace, metav1.DeleteOptions{})
	for err == nil {
		if err = sleep(ctx, time.Second); err != nil {
			break
		}
		_, err = c.client.CoreV1().Namespaces().Get(ctx, c.namespace, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("namespace %s may still be there: %w", c.namespace, err)
}

// forgetHistory makes every resourceVersion from before too old.
func (c *cluster) forgetHistory(ctx context.Context) error {
	if c.controlPlane == nil {
		return errors.New("only the API server of our own control plane can be restarted")
	}
	if err := c.controlPlane.StopAPIServer(); err != nil {
		return err
	}
	if err := c.controlPlane.CompactEtcd(ctx); err != nil {
		return err
	}
	return c.controlPlane.StartAPIServer(ctx)
}
