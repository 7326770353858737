package queue_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// What one process has queued and not popped, the next one pops.
func ExampleNewDeltaFIFO() {
	dir, err := os.MkdirTemp("", "queue")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	process := func(use func(*queue.DeltaFIFO) error) {
		db, err := persist.Open(context.Background(), filepath.Join(dir, "queue.db"), persist.Options{})
		if err != nil {
			log.Fatal(err)
		}
		defer db.Close()
		q, err := queue.NewDeltaFIFO(queue.DeltaFIFOOptions{Options: queue.Options{
			DB: db, Space: "pods", NewObject: func() any { return new(corev1.Pod) },
		}})
		if err != nil {
			log.Fatal(err)
		}
		defer q.Close()
		if err := use(q); err != nil {
			log.Fatal(err)
		}
	}
	process(func(q *queue.DeltaFIFO) error {
		return q.Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}})
	})
	process(func(q *queue.DeltaFIFO) error {
		_, err := q.Pop(func(obj any, _ bool) error {
			for _, d := range obj.(cache.Deltas) {
				fmt.Println(d.Type, d.Object.(*corev1.Pod).Name)
			}
			return nil
		})
		return err
	})
	// Output: Added web
}
