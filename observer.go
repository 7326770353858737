package warmwatch

import (
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/internal/indexer"
	"github.com/warmwatch/warmwatch/internal/processor"
	"github.com/warmwatch/warmwatch/internal/reflector"
	"github.com/warmwatch/warmwatch/internal/sink"
)

// observer implements [reflector.Observer].
type observer struct {
	progress *progress
	syncGate *syncGate
	sink     *sink.Sink
	indexer  *indexer.Indexer
}

// Resuming implements [reflector.Observer].
func (o *observer) Resuming(rv, serverVersion string) {
	o.progress.resuming(rv)
	o.sink.Resumed(rv)
	o.syncGate.aim(serverVersion)
}

// Relisting implements [reflector.Observer].
func (o *observer) Relisting(reason string) {
	o.progress.relisting(reason)
	o.sink.Relisting()
}

// Live implements [reflector.Observer].
func (o *observer) Live(opened time.Time) {
	o.progress.live()
	o.syncGate.opened(opened, o.indexer.LastStoreSyncResourceVersion())
}

// Disconnected implements [reflector.Observer].
func (o *observer) Disconnected(err error) {
	o.progress.disconnected(err)
	o.syncGate.interrupted()
}

// AwaitingBookmark implements [reflector.Observer].
func (o *observer) AwaitingBookmark(err error) { o.progress.set(CodeNoEndBookmark, err) }

// Contact implements [reflector.Observer].
func (o *observer) Contact() {
	o.progress.contact()
	o.syncGate.heard()
}

// sinkInformer implements [sink.Informer].
type sinkInformer struct {
	progress         *progress
	syncGate         *syncGate
	processor        *processor.Processor
	resumer          *atomic.Pointer[reflector.Resumer]
	logger           klog.Logger
	serve, setSynced func()
	synced           cache.DoneChecker
}

// Reached implements [sink.Informer].
func (i *sinkInformer) Reached(rv string) { i.syncGate.reached(rv) }

// Listed implements [sink.Informer].
func (i *sinkInformer) Listed() {
	if !i.syncGate.waits() {
		i.setSynced()
	}
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
	i.syncGate.pass(false)
}

// Refused implements [sink.Informer].
func (i *sinkInformer) Refused(err error) { i.progress.set(CodeRefused, err) }

// ForceRelist implements [sink.Informer].
func (i *sinkInformer) ForceRelist(how reflector.Relisting) {
	i.syncGate.interrupted()
	if r := i.resumer.Load(); r != nil {
		r.ForceRelist(how)
	}
}

// Resync implements [sink.Informer].
func (i *sinkInformer) Resync() { i.processor.Resync() }

// HasSyncedChecker implements [sink.Informer].
func (i *sinkInformer) HasSyncedChecker() cache.DoneChecker { return i.synced }
