package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // Whatever --kubeconfig asks for.
	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
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
func openCluster(ctx context.Context, o options) (*cluster, error) {
	c := &cluster{kubeconfig: o.Kubeconfig, context: o.Context}
	var err error
	if o.Kubeconfig == "" {
		if c.controlPlane, err = controlplane.Start(ctx, controlplane.Options{BinDir: o.BinDir}); err != nil {
			return c, err
		}
		c.kubeconfig = c.controlPlane.Kubeconfig()
	}
	if c.config, err = agent.LoadConfig(c.kubeconfig, c.context); err != nil {
		return c, fmt.Errorf("%s: %w", c.kubeconfig, err)
	}
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

// pods lists the namespace as it is now.
func (c *cluster) pods(ctx context.Context) (pods []*corev1.Pod, err error) {
	list, err := c.client.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods, nil
}

// contents is what an agent's cache is to be equal to.
func (c *cluster) contents(ctx context.Context) (map[string]string, error) {
	pods, err := c.pods(ctx)
	all := map[string]string{}
	for _, pod := range pods {
		all[agent.KeyOf(pod)] = agent.ContentOf(pod, false)
	}
	return all, err
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
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := c.client.CoreV1().ServiceAccounts(c.namespace).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return fmt.Errorf("the namespace got no service account: %w", err)
	}
	return nil
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
	tell("removing namespace %s", c.namespace)
	ctx := context.Background()
	err := c.client.CoreV1().Namespaces().Delete(ctx, c.namespace, metav1.DeleteOptions{})
	if err == nil {
		err = wait.PollUntilContextTimeout(ctx, time.Second, 15*time.Minute, false, func(ctx context.Context) (bool, error) {
			_, err := c.client.CoreV1().Namespaces().Get(ctx, c.namespace, metav1.GetOptions{})
			return false, err
		})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("namespace %s may still be there: %w", c.namespace, err)
}

// forgetHistory makes every resourceVersion from before too old.
func (c *cluster) forgetHistory(ctx context.Context) error {
	if err := c.controlPlane.StopAPIServer(); err != nil {
		return err
	}
	if err := c.controlPlane.CompactEtcd(ctx); err != nil {
		return err
	}
	return c.controlPlane.StartAPIServer(ctx)
}
