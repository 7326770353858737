package indexer_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/persist"
)

// What one process has stored, the next one finds, by the index too.
func ExampleNew() {
	dir, err := os.MkdirTemp("", "indexer")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	process := func(use func(cache.Indexer) error) {
		db, err := persist.Open(context.Background(), filepath.Join(dir, "cache.db"), persist.Options{})
		if err != nil {
			log.Fatal(err)
		}
		defer db.Close()
		ix, err := indexer.New(indexer.Options{
			DB: db, Space: "pods", NewObject: func() any { return new(corev1.Pod) },
			Indexers: cache.Indexers{"node": func(obj any) ([]string, error) {
				return []string{obj.(*corev1.Pod).Spec.NodeName}, nil
			}},
		})
		if err != nil {
			log.Fatal(err)
		}
		defer ix.Release()
		if err := use(ix); err != nil {
			log.Fatal(err)
		}
	}
	process(func(ix cache.Indexer) error {
		return ix.Add(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec:       corev1.PodSpec{NodeName: "node-1"},
		})
	})
	process(func(ix cache.Indexer) error {
		pods, err := ix.ByIndex("node", "node-1")
		for _, pod := range pods {
			fmt.Println(pod.(*corev1.Pod).Name)
		}
		return err
	})
	// Output: web
}
