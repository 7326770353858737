package main

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
)

// openWarmwatch opens the cache file and makes the informer in it.
func openWarmwatch(o agentOptions, lw cache.ListerWatcher) (informer, error) {
	file, err := warmwatch.Open(o.CacheFile, warmwatch.Options{})
	if err != nil {
		return informer{}, err
	}
	pods, err := file.NewSharedIndexInformer(lw, &corev1.Pod{}, warmwatch.InformerOptions{
		Resource:  corev1.SchemeGroupVersion.WithResource("pods"),
		Namespace: o.Namespace,
	})
	if err != nil {
		return informer{}, errors.Join(err, file.Close())
	}
	return informer{
		SharedIndexInformer: pods,
		addDurableHandler: func(name string, h cache.ResourceEventHandler) error {
			_, err := pods.AddDurableEventHandler(name, h)
			return err
		},
		status: func() *status { return statusOf(pods.Status()) },
		close:  file.Close,
	}, nil
}

func statusOf(s warmwatch.InformerStatus) *status {
	to := &status{
		Phase:           string(s.Phase),
		Live:            s.Phase == warmwatch.PhaseLive,
		StartedFrom:     s.StartedFrom,
		Reason:          s.Reason,
		ResourceVersion: s.ResourceVersion,
		Objects:         s.Objects,
		UnackedDeltas:   s.UnackedDeltas,
		Relists:         s.Relists,
		Resumes:         s.Resumes,
	}
	if s.Err != nil {
		to.Error = s.Err.Error()
	}
	return to
}
