package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// changes makes changes on the server, and remembers what each must be told as.
type changes struct {
	cluster *cluster
	pods    []*corev1.Pod // Not changed yet, as the server holds them.
	created int           // Number of the next Pod to create.
	made    []event
}

// take returns the changes made since the last time.
func (c *changes) take() []event {
	made := c.made
	c.made = nil
	return made
}

// make updates, creates and deletes so many Pods, in this order, each another one.
func (c *changes) make(ctx context.Context, updates, creations, deletions int) error {
	for range updates {
		if err := c.update(ctx); err != nil {
			return err
		}
	}
	for range creations {
		if err := c.create(ctx); err != nil {
			return err
		}
	}
	for range deletions {
		if err := c.delete(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *changes) next() *corev1.Pod {
	pod := c.pods[0]
	c.pods = c.pods[1:]
	return pod
}

func (c *changes) update(ctx context.Context) error {
	before := c.next()
	pod := before.DeepCopy()
	workload.Touch(pod, 0)
	after, err := c.cluster.client.CoreV1().Pods(pod.Namespace).Update(ctx, pod, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	c.made = append(c.made, event{
		Type: "MODIFIED", Name: after.Name, OldRV: before.ResourceVersion, NewRV: after.ResourceVersion,
	})
	return nil
}

func (c *changes) create(ctx context.Context) error {
	pod := workload.Pod(c.created)
	c.created++
	pod.ManagedFields = nil
	after, err := c.cluster.client.CoreV1().Pods(c.cluster.namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	c.made = append(c.made, event{Type: "ADDED", Name: after.Name, NewRV: after.ResourceVersion})
	return nil
}

func (c *changes) delete(ctx context.Context) error {
	pod := c.next()
	now := int64(0)
	err := c.cluster.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil {
		return err
	}
	c.made = append(c.made, event{Type: "DELETED", Name: pod.Name})
	return nil
}

// told leaves out the first half of each deletion: the API server first marks a Pod
// with a deletionTimestamp, and tells of that as a change, and then removes it.
func told(events []event) []event {
	return slices.DeleteFunc(slices.Clone(events), func(e event) bool {
		return e.Type == "MODIFIED" && e.Marked
	})
}

// difference says what was delivered too little or too much; "" if nothing. A
// relist may deliver in another order than the changes were made.
func difference(want, got []event, anyOrder bool) string {
	wanted, delivered := describeAll(want), describeAll(told(got))
	if anyOrder {
		slices.Sort(wanted)
		slices.Sort(delivered)
	}
	if !slices.Equal(wanted, delivered) {
		return fmt.Sprintf("delivered [%s], want [%s]", strings.Join(delivered, ", "), strings.Join(wanted, ", "))
	}
	for _, e := range got {
		marks := e.Type == "MODIFIED" && e.Marked
		if marks && !slices.ContainsFunc(want, func(w event) bool { return w.Type == "DELETED" && w.Name == e.Name }) {
			return fmt.Sprintf("%s was marked for deletion, and nobody deleted it", e.Name)
		}
	}
	return ""
}

func describeAll(events []event) []string {
	var all []string
	for _, e := range events {
		all = append(all, describe(e))
	}
	return all
}

// describe leaves out the resourceVersion of a deletion: a watch gives that of the
// deletion itself, a relist cannot know it.
func describe(e event) string {
	switch e.Type {
	case "DELETED":
		return e.Type + " " + e.Name
	case "MODIFIED":
		return fmt.Sprintf("%s %s %s→%s", e.Type, e.Name, e.OldRV, e.NewRV)
	}
	return e.Type + " " + e.Name + " " + e.NewRV
}
