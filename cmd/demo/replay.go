package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// replay is a ListerWatcher without a server: it lists what the server held, and
// then sends decoded events that the server sent once, as fast as they are taken.
// What is measured with it is the informer alone.
type replay struct {
	list    *corev1.PodList
	events  []watch.Event
	started chan struct{} // Closed by start.
}

var _ cache.ListerWatcherWithContext = (*replay)(nil)

// record takes the updates that the server holds from the given version on, and
// makes n events of them: when there are fewer, it begins anew, with
// resourceVersions that count on.
func record(ctx context.Context, client kubernetes.Interface, namespace, from string, n int) (*replay, error) {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	last, err := lastVersion(list)
	if err != nil {
		return nil, err
	}
	recorded, err := recordUpdates(ctx, client, namespace, from, strconv.FormatUint(last, 10))
	if err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	// Before the first event the objects are as old as the recording.
	list.ResourceVersion = from
	for i := range list.Items {
		list.Items[i].ResourceVersion = from
	}
	r := &replay{list: list, started: make(chan struct{})}
	for i := range n {
		pod := *recorded[i%len(recorded)]
		if i >= len(recorded) {
			pod.ResourceVersion = strconv.FormatUint(last+uint64(i), 10)
		}
		r.events = append(r.events, watch.Event{Type: watch.Modified, Object: &pod})
	}
	return r, nil
}

// lastVersion is that of the object that was changed last. The list itself may be
// newer.
func lastVersion(list *corev1.PodList) (uint64, error) {
	var last uint64
	for i := range list.Items {
		version, err := strconv.ParseUint(list.Items[i].ResourceVersion, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("resourceVersion of a Pod: %w", err)
		}
		last = max(last, version)
	}
	return last, nil
}

// recordUpdates watches from one resourceVersion to another.
func recordUpdates(ctx context.Context, client kubernetes.Interface, namespace, from, to string) ([]*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: from})
	if err != nil {
		return nil, err
	}
	defer stream.Stop()
	var pods []*corev1.Pod
	for e := range stream.ResultChan() {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok {
			return nil, fmt.Errorf("event %s with a %T", e.Type, e.Object)
		}
		if e.Type == watch.Modified {
			pods = append(pods, pod)
		}
		if pod.ResourceVersion == to {
			break
		}
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("no updates from version %s to %s", from, to)
	}
	return pods, ctx.Err()
}

func (r *replay) start() { close(r.started) }

// IsWatchListSemanticsUnSupported makes client-go's reflector list.
func (r *replay) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister.
func (r *replay) List(options metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), options)
}

// ListWithContext implements cache.ListerWithContext.
func (r *replay) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return r.list, nil
}

// Watch implements cache.Watcher.
func (r *replay) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), options)
}

// WatchWithContext implements cache.WatcherWithContext. There is one watch.
func (r *replay) WatchWithContext(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	s := &replayStream{events: make(chan watch.Event), stopped: make(chan struct{})}
	go s.send(ctx, r)
	return s, nil
}

// replayStream is a watch.Interface that ends only when it is stopped.
type replayStream struct {
	events  chan watch.Event
	stop    sync.Once
	stopped chan struct{}
}

func (s *replayStream) ResultChan() <-chan watch.Event { return s.events }

func (s *replayStream) Stop() { s.stop.Do(func() { close(s.stopped) }) }

func (s *replayStream) send(ctx context.Context, r *replay) {
	defer close(s.events)
	select {
	case <-r.started:
	case <-s.stopped:
		return
	case <-ctx.Done():
		return
	}
	for _, e := range r.events {
		select {
		case s.events <- e:
		case <-s.stopped:
			return
		case <-ctx.Done():
			return
		}
	}
	select {
	case <-s.stopped:
	case <-ctx.Done():
	}
}
