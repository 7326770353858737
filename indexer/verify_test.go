package indexer

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/warmwatch/warmwatch/persist"
)

// TestVerifyReportsNoDamageUnderAWriter, whose batch may be visible before the
// Indexer knows.
func TestVerifyReportsNoDamageUnderAWriter(t *testing.T) {
	db := openDB(t, tempPath(t), persist.Options{CommitInterval: time.Millisecond})
	var reports atomic.Int64
	var what atomic.Value
	ix, err := New(Options{
		DB: db, Space: testSpace, Objects: NewObjects(-1),
		NewObject: func() any { return new(corev1.Pod) },
		OnCorrupt: func(err error) { reports.Add(1); what.Store(err.Error()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := ix.Add(newPod(fmt.Sprintf("pod-%d", i), "1")); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ctx.Err() == nil; n++ {
			p := newPod("flapping", strconv.Itoa(n))
			_ = ix.Add(p)
			_ = ix.Delete(p)
		}
	}()
	for range 2000 {
		ix.Verify(ctx)
		ix.List()
	}
	cancel()
	<-done
	if n := reports.Load(); n > 0 {
		t.Errorf("%d reports of damage of a sound file: %v", n, what.Load())
	}
}

// TestADamagedStateDoesNotEmptyTheStore: every object is intact.
func TestADamagedStateDoesNotEmptyTheStore(t *testing.T) {
	path := tempPath(t)
	db := openDB(t, path, manual)
	reports := 0
	ix, err := New(Options{
		DB: db, Space: testSpace, Objects: NewObjects(1),
		NewObject: func() any { return new(corev1.Pod) },
		OnCorrupt: func(error) { reports++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := ix.Add(newPod(fmt.Sprintf("pod-%d", i), "1")); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; ; {
		i := bytes.Index(b[at:], []byte(`"count":10}`))
		if i < 0 {
			break
		}
		at += i + 8
		if _, err := f.WriteAt([]byte{'9'}, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := len(ix.List()); got != 10 {
		t.Errorf("List has %d of 10 objects, all of which are intact (%d reports)", got, reports)
	}
	if reports == 0 {
		t.Error("the damage was not reported")
	}
	if c, err := ix.Chunk("", false); err != nil || len(c.Objects) != 10 {
		t.Errorf("a walk has %d objects, %v", len(c.Objects), err)
	}
}
