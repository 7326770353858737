package processor

import (
	"fmt"
	"slices"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/queue"
)

// panicPatience is how long a process that is about to end by a panic waits for the disk to
// note that.
const panicPatience = 5 * time.Second

// withheld reports whether the handler must not be told of a delta, because its object is set
// aside, or is now; and whether to go on.
func (l *listener) withheld(d *queue.Delta) (withheld, goOn bool) {
	withheld, now, err := l.consumer.Withholds(d, l.p.opts.MaxPanics)
	if err != nil {
		return true, false
	}
	if now {
		l.log().Error(nil, "A durable handler has panicked on this object in several processes. It is set aside: the handler is told of its deletion, but of nothing else until RedeliverSetAside is called",
			"handler", l.name, "key", d.Key, "type", d.Type, "panics", l.p.opts.MaxPanics)
	}
	return withheld, true
}

// notePanic notes durably that a durable handler has panicked when it was told of an object, unless
// the process goes on. A disk that does not answer does not keep the process from ending.
func (l *listener) notePanic(key string) (noted string) {
	if !utilruntime.ReallyCrash || l.p.opts.MaxPanics < 0 {
		return "not counted"
	}
	done := make(chan string, 1)
	go func() {
		count, err := l.consumer.NotePanic(key)
		if err != nil {
			done <- fmt.Sprintf("could not be counted: %v", err)
			return
		}
		done <- fmt.Sprintf("%d in a row, the object is set aside after %d", count, l.p.opts.MaxPanics)
	}()
	select {
	case noted = <-done:
		return noted
	case <-time.After(panicPatience):
		return "could not be counted: no answer from the disk"
	}
}

// redeliver tells the handler of the objects that are set aside and that it is to be told of now.
// An object that has a delta behind the cursor is told with that delta.
func (l *listener) redeliver() bool {
	for _, key := range l.consumer.Wanted() {
		if d, owed := l.consumer.Owed(key); owed {
			if l.stopped() || !l.callNow(&d, func() { l.handler.OnDelete(d.Object()) }) {
				return false
			}
			if err := l.consumer.PayOwed(key); err != nil {
				return false
			}
		}
		if !l.redeliverObject(key) {
			return false
		}
	}
	return true
}

func (l *listener) redeliverObject(key string) bool {
	c, err := l.p.opts.Store.ReadObject(key, true)
	for ; err != nil; c, err = l.p.opts.Store.ReadObject(key, true) {
		if !l.failed(err) {
			return false
		}
	}
	d := queue.Delta{Type: cache.Deleted, Key: key} // If there is no object, this ends that it is set aside.
	switch {
	case len(c.LeftOut) > 0, len(c.Keys) == 0 && c.Seq > l.consumer.Cursor(), len(c.Keys) > 0 && c.Seqs[0] > l.consumer.Cursor():
		return true // A delta will tell.
	case len(c.Keys) > 0:
		d.Type, d.New = cache.Added, c.Objects[0]
		if l.stopped() || !l.callNow(&d, func() { l.handler.OnAdd(d.New, false) }) {
			return false
		}
	}
	l.consumer.EndAside(&d)
	return true
}

// acknowledge acknowledges a delta, of which the handler was told, or not. Who is not told may come to want what is set
// aside at any time, and is told of it then.
func (l *listener) acknowledge(d *queue.Delta, told bool) {
	if !told || !l.consumer.EndAside(d) {
		l.consumer.Acknowledge(d.Seq)
	}
}

// Redeliver has the handler of a durable name told of what is set aside, see [queue.Log.Redeliver].
// It fails after Stop.
func (p *Processor) Redeliver(durableName string, keys ...string) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	if p.stopped {
		return fmt.Errorf("what is set aside for durable handler %q is not delivered because shared informer has stopped already", durableName)
	}
	p.opts.Log.Redeliver(durableName, keys...)
	if !p.started {
		p.redelivered = append(p.redelivered, redelivery{durableName, slices.Clone(keys)})
	}
	return nil
}

// A redelivery is a call of Redeliver.
type redelivery struct {
	name string
	keys []string
}
