package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
)

// agentEnv holds the agentConfig of a test binary that is to be an agent: the
// process that is killed.
const agentEnv = "WARMWATCH_E2E_AGENT"

type agentConfig struct {
	Host, Token string
	CAData      []byte
	Namespace   string
	CacheFile   string
	Journal     string // Of the durable handler, one for all lives.
	Plain       string // Of the plain handler, one for each life.
}

// dump is what an agent says when asked.
type dump struct {
	Versions map[string]string
	Status   warmwatch.InformerStatus
	Err      string // Status.Err.
}

// runAgent keeps a cache of ConfigMaps until in ends. For each line of in it
// writes a dump.
func runAgent(ctx context.Context, config string, in io.Reader, out io.Writer) (err error) {
	var o agentConfig
	if err := json.Unmarshal([]byte(config), &o); err != nil {
		return err
	}
	// So little is kept in memory that most is read from the file.
	c, err := warmwatch.Open(o.CacheFile, warmwatch.Options{MemoryBudget: 64 << 10})
	if err != nil {
		return err
	}
	cfg := &rest.Config{
		Host: o.Host, BearerToken: o.Token, TLSClientConfig: rest.TLSClientConfig{CAData: o.CAData}, QPS: -1,
	}
	cfg.Wrap(c.WrapTransport)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	informer, err := c.NewSharedIndexInformer(configMapsIn(client, o.Namespace), &corev1.ConfigMap{}, warmwatch.InformerOptions{
		Resource: configMaps, Namespace: o.Namespace,
		Indexers: cache.Indexers{thirdIndex: byThird}, IndexVersion: "1",
	})
	if err != nil {
		return err
	}
	durable, err := openJournal(o.Journal)
	if err != nil {
		return err
	}
	if _, err := informer.AddDurableEventHandler("journal", durable); err != nil {
		return err
	}
	plain, err := openJournal(o.Plain)
	if err != nil {
		return err
	}
	if _, err := informer.AddEventHandler(plain); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	err = answer(informer, in, out)
	cancel()
	running.Wait()
	return errors.Join(err, c.Close(), durable.Close(), plain.Close())
}

func answer(informer *warmwatch.SharedIndexInformer, in io.Reader, out io.Writer) error {
	encoder := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		d := dump{Versions: versionsOfStore(informer.GetIndexer()), Status: informer.Status()}
		if d.Status.Err != nil {
			d.Err, d.Status.Err = d.Status.Err.Error(), nil
		}
		if err := checkIndex(informer.GetIndexer()); err != nil {
			d.Err = err.Error()
		}
		if err := encoder.Encode(d); err != nil {
			return err
		}
	}
	return nil
}

const thirdIndex = "third"

func byThird(obj any) ([]string, error) {
	return []string{obj.(*corev1.ConfigMap).Labels["third"]}, nil
}

// checkIndex wants every object under its value (I1). Objects change meanwhile,
// but not their label.
func checkIndex(indexer cache.Indexer) error {
	for _, value := range indexer.ListIndexFuncValues(thirdIndex) {
		objects, err := indexer.ByIndex(thirdIndex, value)
		if err != nil {
			return err
		}
		for _, obj := range objects {
			if got := obj.(*corev1.ConfigMap).Labels["third"]; got != value {
				return fmt.Errorf("%s with %q is indexed under %q", keyOf(obj), got, value)
			}
		}
	}
	return nil
}

// journal is a handler that appends a line for each notification to a file, in
// one write, so that a killed process leaves whole lines. Now and then it takes
// longer than a commit: what it is at when it is killed must not count as told.
type journal struct{ *os.File }

func openJournal(path string) (journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return journal{f}, err
}

func (j journal) OnAdd(obj any, initial bool) { j.write(toldOfAdd(obj, initial)) }
func (j journal) OnUpdate(old, obj any)       { j.write(toldOfUpdate(old, obj)) }
func (j journal) OnDelete(obj any)            { j.write(toldOfDelete(obj)) }

func (j journal) write(e told) {
	if rand.IntN(50) == 0 {
		time.Sleep(30*time.Millisecond + rand.N(30*time.Millisecond))
	}
	if _, err := fmt.Fprintf(j, "%s %s %s %s\n", e.Kind, e.Key, orDash(e.Old), orDash(e.New)); err != nil {
		panic(err) // What is not in the journal must not be acknowledged.
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func parseTold(line string) (told, error) {
	f := strings.Fields(line)
	if len(f) != 4 {
		return told{}, fmt.Errorf("not a line of a journal: %q", line)
	}
	if f[2] == "-" {
		f[2] = ""
	}
	return told{Kind: f[0], Key: f[1], Old: f[2], New: f[3]}, nil
}
