package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
)

// controllerRuns is how often each controller is restarted.
const controllerRuns = 10

// controllers measures how long the controller of examples/, killed, takes until it does something again.
func (s *suite) controllers(ctx context.Context) error {
	p, err := s.grow(ctx, "pods", fewPods)
	if err != nil {
		return err
	}
	if err := s.createDeployment(ctx); err != nil {
		return err
	}
	programs := map[string]string{agent.ClientGo: "before", agent.Warmwatch: "after"}
	for _, impl := range impls {
		dir := filepath.Join(s.dir, programs[impl])
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		build := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join("..", "examples"), "-o", filepath.Join(dir, "controller"), "./controller/"+programs[impl])
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", build, err, out)
		}
		if _, err := s.firstAction(ctx, dir); err != nil { // It leaves a file.
			return err
		}
	}
	for range controllerRuns {
		for _, impl := range impls {
			took, err := s.firstAction(ctx, filepath.Join(s.dir, programs[impl]))
			figures := map[string]float64{result.FirstAction: millis(took)}
			if err := s.add("one restart of a controller", report.Controller, p.title, p.objects, impl, figures, err); err != nil {
				return err
			}
		}
	}
	s.show(report.Controller, p.title, p.objects)
	return nil
}

// createDeployment makes the object that the controller acts on.
func (s *suite) createDeployment(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.controlPlane.Config())
	if err != nil {
		return err
	}
	labels := map[string]string{"app": "web"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: "web"}}
	_, err = client.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{})
	return err
}

// firstAction starts the controller in dir, waits until it says what it has done, lets it commit that, and kills it.
func (s *suite) firstAction(ctx context.Context, dir string) (took time.Duration, err error) {
	c := exec.CommandContext(ctx, filepath.Join(dir, "controller"), "-kubeconfig", s.controlPlane.Kubeconfig())
	c.Dir, c.SysProcAttr = dir, controlplane.ProcessAttributes()
	said, err := c.StderrPipe()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := c.Start(); err != nil {
		return 0, err
	}
	line, err := bufio.NewReader(said).ReadString('\n')
	took = time.Since(begin)
	if err != nil {
		err = fmt.Errorf("the controller ended: %w: %s", err, line)
	}
	time.Sleep(settle)
	err = errors.Join(err, c.Process.Kill())
	_ = c.Wait() // It was killed.
	return took, err
}
