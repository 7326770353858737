package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// changes makes changes on the server, and knows how each must be delivered.
type changes struct {
	cluster *cluster
	pods    []*corev1.Pod // Not changed yet, as the server holds them.
	created int           // Number of the next Pod to create.
}

// make updates, creates and deletes so many Pods, in this order, each another one. It
// returns what a handler must get.
func (c *changes) make(ctx context.Context, updates, creations, deletions int) (made []agent.Change, err error) {
	for _, kind := range []struct {
		n      int
		change func(context.Context) (agent.Change, error)
	}{{updates, c.update}, {creations, c.create}, {deletions, c.delete}} {
		for range kind.n {
			change, err := kind.change(ctx)
			if err != nil {
				return nil, err
			}
			made = append(made, change)
		}
	}
	return made, nil
}

func (c *changes) next() *corev1.Pod {
	pod := c.pods[0]
	c.pods = c.pods[1:]
	return pod
}

func (c *changes) update(ctx context.Context) (agent.Change, error) {
	before := c.next()
	pod := before.DeepCopy()
	workload.Touch(pod)
	after, err := c.cluster.client.CoreV1().Pods(pod.Namespace).Update(ctx, pod, metav1.UpdateOptions{})
	if err != nil {
		return agent.Change{}, err
	}
	return agent.Change{Type: "MODIFIED", Name: after.Name, OldRV: before.ResourceVersion, NewRV: after.ResourceVersion}, nil
}

func (c *changes) create(ctx context.Context) (agent.Change, error) {
	pod := workload.Pod(c.created)
	c.created++
	pod.ManagedFields = nil
	after, err := c.cluster.client.CoreV1().Pods(c.cluster.namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return agent.Change{}, err
	}
	return agent.Change{Type: "ADDED", Name: after.Name, NewRV: after.ResourceVersion}, nil
}

func (c *changes) delete(ctx context.Context) (agent.Change, error) {
	pod := c.next()
	now := int64(0)
	err := c.cluster.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	return agent.Change{Type: "DELETED", Name: pod.Name}, err
}

// withoutMarks leaves out the first half of each deletion: the API server first marks a Pod
// with a deletionTimestamp, and reports that as a change, and then removes it.
func withoutMarks(events []agent.Change) []agent.Change {
	return slices.DeleteFunc(slices.Clone(events), func(e agent.Change) bool {
		return e.Type == "MODIFIED" && e.Marked
	})
}

// difference says what was delivered too little or too much; "" if nothing. A
// relist may deliver in another order than the changes were made.
func difference(want, got []agent.Change, anyOrder bool) string {
	wanted, delivered := describeAll(want), describeAll(withoutMarks(got))
	if anyOrder {
		slices.Sort(wanted)
		slices.Sort(delivered)
	}
	if !slices.Equal(wanted, delivered) {
		return fmt.Sprintf("delivered [%s], want [%s]", strings.Join(delivered, ", "), strings.Join(wanted, ", "))
	}
	for _, e := range got {
		marks := e.Type == "MODIFIED" && e.Marked
		if marks && !slices.ContainsFunc(want, func(w agent.Change) bool { return w.Type == "DELETED" && w.Name == e.Name }) {
			return fmt.Sprintf("%s was marked for deletion, and nobody deleted it", e.Name)
		}
	}
	return ""
}

func describeAll(events []agent.Change) []string {
	var all []string
	for _, e := range events {
		all = append(all, describe(e))
	}
	return all
}

// describe leaves out the resourceVersion of a deletion: a watch gives that of the
// deletion itself, a relist cannot know it.
func describe(e agent.Change) string {
	switch e.Type {
	case "DELETED":
		return e.Type + " " + e.Name
	case "MODIFIED":
		return fmt.Sprintf("%s %s %s→%s", e.Type, e.Name, e.OldRV, e.NewRV)
	}
	return e.Type + " " + e.Name + " " + e.NewRV
}
