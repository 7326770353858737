package warmwatch

import (
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/internal/processor"
	"github.com/warmwatch/warmwatch/internal/reflector"
	"github.com/warmwatch/warmwatch/internal/sink"
)

// observer implements [reflector.Observer].
type observer struct {
	progress *progress
	sink     *sink.Sink
	caughtUp func()
}

// Resuming implements [reflector.Observer].
func (o *observer) Resuming(rv string) { o.progress.resuming(rv) }

// Relisting implements [reflector.Observer].
func (o *observer) Relisting(how reflector.Relisting) {
	o.progress.relisting(how)
	o.sink.Relisting()
}

// Live implements [reflector.Observer].
func (o *observer) Live() { o.progress.live() }

// CaughtUp implements [reflector.Observer].
func (o *observer) CaughtUp() { o.caughtUp() }

// Disconnected implements [reflector.Observer].
func (o *observer) Disconnected(err error) { o.progress.disconnected(err) }

// Contact implements [reflector.Observer].
func (o *observer) Contact() { o.progress.contact() }

// sinkInformer implements [sink.Informer].
type sinkInformer struct {
	progress        *progress
	processor       *processor.Processor
	logger          klog.Logger
	serve, caughtUp func()
	synced          cache.DoneChecker
}

// RelistBegun implements [sink.Informer].
func (i *sinkInformer) RelistBegun(rewriting bool) { i.progress.relistBegun(rewriting) }

// RelistEnded implements [sink.Informer].
func (i *sinkInformer) RelistEnded(complete bool, refused error) (whole bool) {
	whole, repaired := i.progress.relistEnded(complete, refused)
	if repaired {
		i.logger.Info("All objects were listed, and what could not be read is written anew")
	}
	return whole
}

// Relisted implements [sink.Informer].
func (i *sinkInformer) Relisted(full bool) {
	i.progress.relisted(full)
	i.serve()
	i.caughtUp()
}

// Refused implements [sink.Informer].
func (i *sinkInformer) Refused(err error) { i.progress.set(CodeRefused, err) }

// Resync implements [sink.Informer].
func (i *sinkInformer) Resync() { i.processor.Resync() }

// HasSyncedChecker implements [sink.Informer].
func (i *sinkInformer) HasSyncedChecker() cache.DoneChecker { return i.synced }
