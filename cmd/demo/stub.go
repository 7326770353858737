package main

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

func openWarmwatch(o agentOptions, lw cache.ListerWatcher) (informer, error) {
	inf := cache.NewSharedIndexInformer(lw, &corev1.Pod{}, 0, cache.Indexers{})
	return informer{
		SharedIndexInformer: inf,
		close:               func() error { return nil },
		status:              func() *status { return &status{Live: inf.HasSynced(), StartedFrom: "server"} },
	}, nil
}
