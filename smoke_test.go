package warmwatch

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
)

type rec struct {
	mu  sync.Mutex
	log []string
}

func (r *rec) add(s string) { r.mu.Lock(); r.log = append(r.log, s); r.mu.Unlock() }
func (r *rec) get() []string { r.mu.Lock(); defer r.mu.Unlock(); return append([]string(nil), r.log...) }
func (r *rec) OnAdd(o any, initial bool) {
	r.add(fmt.Sprintf("add %s %v", o.(*corev1.ConfigMap).Name, initial))
}
func (r *rec) OnUpdate(a, b any) {
	r.add(fmt.Sprintf("upd %s %s->%s", b.(*corev1.ConfigMap).Name, a.(*corev1.ConfigMap).ResourceVersion, b.(*corev1.ConfigMap).ResourceVersion))
}
func (r *rec) OnDelete(o any) {
	if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
		r.add("tomb " + t.Key)
		return
	}
	r.add("del " + o.(*corev1.ConfigMap).Name)
}

func TestSmoke(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	src := fcache.NewFakeControllerSource()
	for i := range 5 {
		src.Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("a", i), Namespace: "ns", UID: "u"}})
	}
	run := func(f func(s *SharedIndexInformer, p, d *rec)) {
		c, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.NewSharedIndexInformer(src, &corev1.ConfigMap{}, InformerOptions{Resource: corev1.SchemeGroupVersion.WithResource("configmaps")})
		if err != nil {
			t.Fatal(err)
		}
		p, d := &rec{}, &rec{}
		s.AddEventHandler(p)
		s.AddDurableEventHandler("d", d)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.RunWithContext(ctx); close(done) }()
		if !cache.WaitForCacheSync(ctx.Done(), s.HasSynced) {
			t.Fatal("sync")
		}
		f(s, p, d)
		time.Sleep(1500 * time.Millisecond)
		t.Logf("%+v", s.Status())
		t.Log("plain", p.get())
		t.Log("durable", d.get())
		cancel()
		<-done
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	run(func(s *SharedIndexInformer, p, d *rec) {
		src.Modify(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a1", Namespace: "ns", UID: "u"}})
		src.Delete(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a2", Namespace: "ns", UID: "u"}})
	})
	src.Delete(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a3", Namespace: "ns", UID: "u"}})
	src.Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a9", Namespace: "ns", UID: "u"}})
	run(func(s *SharedIndexInformer, p, d *rec) {})
	run(func(s *SharedIndexInformer, p, d *rec) {})
}
