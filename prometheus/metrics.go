package warmprom

import (
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmwatch/warmwatch"
)

const prefix = "warmwatch_"

// A kind is a type of metrics, and how two values with the same labels are combined.
type kind struct {
	name      string // As Prometheus calls the type.
	of        prometheus.ValueType
	combine   func(a, b float64) float64
	histogram bool // The one of commits, which collectCommits makes.
}

var (
	counter   = kind{name: "counter", of: prometheus.CounterValue, combine: add}
	number    = kind{name: "gauge", of: prometheus.GaugeValue, combine: add}
	lowest    = kind{name: "gauge", of: prometheus.GaugeValue, combine: math.Min} // Of timestamps: the oldest.
	highest   = kind{name: "gauge", of: prometheus.GaugeValue, combine: math.Max}
	histogram = kind{name: "histogram", histogram: true}
)

func add(a, b float64) float64 { return a + b }

// A put takes a value of a metric. The labels are all those of the metric, in their order.
type put func(value float64, labels ...string)

// A metric is a row of the table.
type metric struct {
	name   string // Without the prefix.
	kind   kind
	labels []string
	// values are the possible values of the last label, nil if it can be anything.
	values []string
	help   string
	read   func(now *scrape, put put)
}

var (
	cacheLabels    = []string{"cache"}
	informerLabels = []string{"cache", "group", "version", "resource", "namespace", "name"}
	handlerLabels  = with(informerLabels, "handler") // Also of reconcilers.

	results   = []string{"success", "error"}
	reconcile = []string{"success", "error", "requeue"}
	scopes    = []string{"file", "value"}
	origins   = []string{"disk", "server"}
	requests  = []string{"list", "metadata", "objects", "watch", "question", "other"}
	events    = []string{"added", "updated", "deleted", "bookmark"}
	restarts  = []string{"New", "Epoch", "Backlog", "Damaged", "TransformVersion", "Unfinished"}
	reasons   = texts(warmwatch.CodeLocked, warmwatch.CodeNoFile, warmwatch.CodeFileDamaged, warmwatch.CodeNotWritten, warmwatch.CodeDiskHangs,
		warmwatch.CodeNotRead, warmwatch.CodeOtherRequest, warmwatch.CodeFromMemory, warmwatch.CodeUnreadable, warmwatch.CodeRefused, warmwatch.CodeServerFails)
	causes = texts(warmwatch.CauseFirstStart, warmwatch.CauseOtherCluster, warmwatch.CauseOtherIdentity, warmwatch.CauseTransformVersion,
		warmwatch.CauseSchemaVersion, warmwatch.CauseIncomplete, warmwatch.CauseDamaged, warmwatch.CauseNoVersion, warmwatch.CauseNeverResume,
		warmwatch.CauseExpired, warmwatch.CauseWatchFailed, warmwatch.CauseServerBehind, warmwatch.CauseContradiction,
		warmwatch.CauseOtherRequest, warmwatch.CauseFullRelist)
)

// metrics is the table: Describe, Collect, docs/metrics.md and the tests are made of it. Nothing changes it.
var metrics = slices.Concat(ofBuild, ofCache, ofInformer, ofHandler, ofReconciler)

var ofBuild = []metric{
	{"build_info", number, []string{"version", "goversion"}, nil, "Always 1. The labels are the versions of the library and of Go.",
		func(now *scrape, put put) { put(1, now.version, now.goVersion) }},
}

var ofCache = []metric{
	{"persistent", lowest, cacheLabels, nil, "1 if changes are written to the file, 0 if the Cache works from memory or the file is only read.",
		perCache(func(c *warmwatch.Metrics, put put) { put(bit(c.Persistent)) })},
	{"degraded", number, with(cacheLabels, "reason"), reasons, "Present problems by code. 1 for a problem of the file, otherwise the number of informers that have it.",
		perCache(func(c *warmwatch.Metrics, put put) { putAll(c.Degraded, nil, put) })},
	{"file_bytes", number, cacheLabels, nil, "Size of the file.",
		perCache(func(c *warmwatch.Metrics, put put) { put(float64(c.File.Bytes)) })},
	{"file_free_bytes", number, cacheLabels, nil, "Size of the file's free pages.",
		perCache(func(c *warmwatch.Metrics, put put) { put(float64(c.File.FreeBytes)) })},
	{"commits_total", counter, with(cacheLabels, "result"), results, "Commits to the file.",
		perCache(func(c *warmwatch.Metrics, put put) {
			put(float64(c.File.Commits), "success")
			put(float64(c.File.FailedCommits), "error")
		})},
	{"commit_duration_seconds", histogram, cacheLabels, nil, "Duration of commits to the file, including failed ones.", nil},
	{"commit_written_bytes_total", counter, cacheLabels, nil, "Approximate size of what commits have written to the file.",
		perCache(func(c *warmwatch.Metrics, put put) { put(float64(c.File.WrittenBytes)) })},
	{"pending_bytes", number, cacheLabels, nil, "Size of the changes that wait in memory for a commit.",
		perCache(func(c *warmwatch.Metrics, put put) { put(float64(c.File.PendingBytes)) })},
	{"unwritten_timestamp_seconds", lowest, cacheLabels, nil, "When the oldest change that waits for a commit was made. No series if none waits.",
		perCache(func(c *warmwatch.Metrics, put put) { putTime(c.File.Unwritten, put) })},
	{"oldest_snapshot_timestamp_seconds", lowest, cacheLabels, nil, "When the oldest open snapshot began. While one is open, freed pages are not reused. No series if none is open.",
		perCache(func(c *warmwatch.Metrics, put put) { putTime(c.File.OldestSnapshot, put) })},
	{"damage_total", counter, with(cacheLabels, "scope"), scopes, "How often damage was found: in the file or a bucket of it, or in a value whose checksum failed.",
		perCache(func(c *warmwatch.Metrics, put put) {
			put(float64(c.File.Damages), "file")
			put(float64(c.File.DamagedValues), "value")
		})},
}

var ofInformer = []metric{
	{"informer_objects", number, informerLabels, nil, "Objects in the cache.",
		perInformer(func(i *warmwatch.InformerMetrics, put put) { put(float64(i.Objects)) })},
	{"informer_live", lowest, informerLabels, nil, "1 if a watch is open.",
		perInformer(func(i *warmwatch.InformerMetrics, put put) { put(bit(i.Live)) })},
	{"informer_last_contact_timestamp_seconds", lowest, informerLabels, nil, "When the server last answered; before its first answer, when it last confirmed the content of the file. The objects may be that old.",
		perInformer(func(i *warmwatch.InformerMetrics, put put) { putTime(i.LastContact, put) })},
	{"informer_caught_up_seconds", highest, with(informerLabels, "from"), origins, "Time from Run until the cache had caught up with the server, by where its objects first came from. No series before it has.",
		perInformer(func(i *warmwatch.InformerMetrics, put put) {
			if i.CaughtUpAfter > 0 {
				put(i.CaughtUpAfter.Seconds(), i.StartedFrom)
			}
		})},
	{"informer_resumes_total", counter, informerLabels, nil, "How often the watch was resumed at the checkpoint.",
		perInformer(func(i *warmwatch.InformerMetrics, put put) { put(float64(i.Resumes)) })},
	{"informer_relists_total", counter, with(informerLabels, "cause"), causes, "Lists that were compared with the cache, by cause.",
		perInformer(func(i *warmwatch.InformerMetrics, put put) { putAll(i.Relists, nil, put) })},
	{"informer_received_bytes_total", counter, with(informerLabels, "request"), requests, "Size of the server's answers after decompression, by kind of request. 0 if the transport is not wrapped.",
		perInformer(func(i *warmwatch.InformerMetrics, put put) { putAll(i.ReceivedBytes, requests, put) })},
	{"informer_events_total", counter, with(informerLabels, "type"), events, "Events of the watch that were applied.",
		perInformer(func(i *warmwatch.InformerMetrics, put put) { putAll(i.Events, events, put) })},
}

var ofHandler = []metric{
	{"handler_undelivered", number, handlerLabels, nil, "Changes that the handler has not acknowledged.",
		perHandler(func(h *warmwatch.HandlerStatus, put put) { put(float64(h.Undelivered)) })},
	{"handler_oldest_undelivered_timestamp_seconds", lowest, handlerLabels, nil, "About when the oldest unacknowledged change was applied, or read from the file at the start. No series if there is none.",
		perHandler(func(h *warmwatch.HandlerStatus, put put) { putTime(h.OldestUndelivered, put) })},
	{"handler_callback_timestamp_seconds", lowest, handlerLabels, nil, "When the running callback began. No series if none runs.",
		perHandler(func(h *warmwatch.HandlerStatus, put put) { putTime(h.CallbackSince, put) })},
	{"handler_backlog_bytes", number, handlerLabels, nil, "Approximate size of the changes that the handler has not acknowledged.",
		perHandler(func(h *warmwatch.HandlerStatus, put put) { put(float64(h.UndeliveredBytes)) })},
	{"handler_restarts_total", counter, with(handlerLabels, "cause"), restarts, "How often the handler began or started over, by cause.",
		perHandler(func(h *warmwatch.HandlerStatus, put put) { putAll(h.Restarts, nil, put) })},
	{"handler_skipped_total", counter, handlerLabels, nil, "Changes that this process skipped, because the handler has panicked on the object in several processes.",
		perHandler(func(h *warmwatch.HandlerStatus, put put) { put(float64(h.Skipped)) })},
}

var ofReconciler = []metric{
	{"reconciler_keys", number, handlerLabels, nil, "Keys that wait (also for a later time) or are being reconciled.",
		perReconciler(func(r *warmwatch.ReconcilerStatus, put put) { put(float64(r.Keys)) })},
	{"reconciles_total", counter, with(handlerLabels, "result"), reconcile, "Reconciles that have returned: nil, an error, or a time for the next one.",
		perReconciler(func(r *warmwatch.ReconcilerStatus, put put) {
			put(float64(r.Succeeded), "success")
			put(float64(r.Failed), "error")
			put(float64(r.Requeued), "requeue")
		})},
	{"reconcile_timestamp_seconds", lowest, handlerLabels, nil, "When the oldest running reconcile began. No series if none runs.",
		perReconciler(func(r *warmwatch.ReconcilerStatus, put put) { putTime(r.ReconcilingSince, put) })},
}

// with returns the labels and one more.
func with(labels []string, more string) []string { return append(slices.Clip(labels), more) }

func texts[T ~string](all ...T) []string {
	var some []string
	for _, one := range all {
		some = append(some, string(one))
	}
	return some
}

func bit(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// putTime puts a time, unless there is none.
func putTime(t time.Time, put put) {
	if !t.IsZero() {
		put(float64(t.UnixNano()) / 1e9)
	}
}

// putAll puts counts by the last label. A label in always is put even if its count is missing.
func putAll[K ~string, N int | int64](counts map[K]N, always []string, put put) {
	for _, label := range always {
		put(float64(counts[K(label)]), label)
	}
	for label, n := range counts {
		if !slices.Contains(always, string(label)) {
			put(float64(n), string(label))
		}
	}
}

// labelled returns a put that takes only the labels after the first ones.
func labelled(put put, first ...string) put {
	return func(value float64, more ...string) { put(value, slices.Concat(first, more)...) }
}

func perCache(read func(*warmwatch.Metrics, put)) func(*scrape, put) {
	return func(now *scrape, put put) {
		for i := range now.caches {
			read(&now.caches[i], labelled(put, now.caches[i].Name))
		}
	}
}

func perInformer(read func(*warmwatch.InformerMetrics, put)) func(*scrape, put) {
	return perCache(func(c *warmwatch.Metrics, put put) {
		for n := range c.Informers {
			i := &c.Informers[n]
			read(i, labelled(put, i.Group, i.Version, i.Resource, i.Namespace, i.Name))
		}
	})
}

func perHandler(read func(*warmwatch.HandlerStatus, put)) func(*scrape, put) {
	return perInformer(func(i *warmwatch.InformerMetrics, put put) {
		for n := range i.Handlers {
			read(&i.Handlers[n], labelled(put, i.Handlers[n].Name))
		}
	})
}

func perReconciler(read func(*warmwatch.ReconcilerStatus, put)) func(*scrape, put) {
	return perInformer(func(i *warmwatch.InformerMetrics, put put) {
		for n := range i.Reconcilers {
			read(&i.Reconcilers[n], labelled(put, i.Reconcilers[n].Name))
		}
	})
}
