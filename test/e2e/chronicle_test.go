package e2e

import (
	"fmt"
	"strings"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// chronicle is what one handler got, a durable one over all lives and a plain one in
// this life, and what it must believe.
type chronicle struct {
	resource, handler string
	durable           bool

	seen   int               // Events of this life's agent.
	known  map[string]string // By key: uid@version@sum.
	holder map[string]string // By key: the last uid that was delivered.
	// fates says what became of each uid that was delivered.
	fates map[string]*fate
	// versions are those delivered in this life by key: they must not go back.
	versions map[string]string
	// putBack: etcd was, and what has changed since its snapshot is as it was then, at the
	// version of then, also where its revisions go on. So versions may go back.
	putBack  bool
	problems []string

	delivered, deletions, replaced int
}

type fate struct {
	key     string
	deleted bool
	// replaced: it was notified of another uid under this key, and not of the deletion,
	// as client-go tells plain handlers of a relist.
	replaced bool
}

func newChronicle(resource, handler string) *chronicle {
	return &chronicle{
		resource: resource, handler: handler, durable: handler == "durable",
		known: map[string]string{}, holder: map[string]string{}, fates: map[string]*fate{}, versions: map[string]string{},
	}
}

// begin is a new life of the process.
func (c *chronicle) begin() {
	c.seen = 0
	c.versions = map[string]string{}
	if !c.durable { // It is notified of everything that there is, and of no deletion before that.
		c.known, c.holder, c.fates = map[string]string{}, map[string]string{}, map[string]*fate{}
	}
}

// read reads on.
func (c *chronicle) read(a *agentProcess) {
	all := a.Events()
	for _, e := range all[c.seen:] {
		if e.Resource != c.resource || e.Handler != c.handler {
			continue
		}
		if err := c.hear(e); err != nil {
			c.problem("%+v: %v", e, err)
		}
	}
	c.seen = len(all)
}

func (c *chronicle) problem(format string, args ...any) {
	c.problems = append(c.problems, c.resource+", "+c.handler+": "+fmt.Sprintf(format, args...))
}

// uidOf and rvOfContent take a contentOf to pieces.
func uidOf(content string) string { uid, _, _ := strings.Cut(content, "@"); return uid }

func rvOfContent(content string) string {
	_, rest, _ := strings.Cut(content, "@")
	rv, _, _ := strings.Cut(rest, "@")
	return rv
}

func (c *chronicle) hear(e agent.Event) error {
	kind, key, content := deliveryOf(e).Kind, e.Key, e.New
	c.delivered++
	if kind == "delete" || kind == "lost" {
		c.deletions++
		// What was delivered under this key is gone, whatever the last state was.
		for _, uid := range []string{uidOf(content), c.holder[key]} {
			if fate := c.fates[uid]; fate != nil {
				fate.deleted = true
			}
		}
		delete(c.known, key)
		delete(c.versions, key)
		return nil
	}
	uid := uidOf(content)
	if before := c.fates[c.holder[key]]; before != nil && c.holder[key] != uid && !before.deleted {
		before.replaced = true
		c.replaced++
	}
	c.holder[key] = uid
	if c.fates[uid] == nil {
		c.fates[uid] = &fate{key: key}
	}
	fate := c.fates[uid]
	fate.deleted, fate.replaced = false, false // Delivered again: of an etcd that was put back, or after a crash.
	last := c.versions[key]
	c.known[key], c.versions[key] = content, content
	if last != "" && !c.putBack && goesBack(delivery{Old: rvOfContent(last), New: rvOfContent(content)}) {
		return fmt.Errorf("after %s", last)
	}
	return nil
}

// lost lists the objects that were delivered, are not there any more, and were never
// said to be deleted. There is the server's state by key.
func (c *chronicle) lost(there map[string]string) (lost []string) {
	for uid, f := range c.fates {
		if !f.deleted && uidOf(there[f.key]) != uid && (c.durable || !f.replaced) {
			how := ""
			if f.replaced {
				how = ", delivered as an update to another uid"
			}
			lost = append(lost, fmt.Sprintf("%s, uid %s%s", f.key, uid, how))
			f.deleted = true // Reported once.
		}
	}
	return lost
}
