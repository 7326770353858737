package reflector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/warmwatch/warmwatch/internal/request"
)

// TestAListOfKnownObjectsIsNoQuietStream: nothing comes of what is known, however long that takes,
// and the newest object of the list may be one of them.
func TestAListOfKnownObjectsIsNoQuietStream(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, c := range []struct {
			known string // Version of the newest object that is known.
			want  string // What is stored.
		}{{"4", "finish 9"}, {"10", "finish "}} { // Newer than the list: no watch is resumed there.
			w := newWorld(t, "3")
			r := w.open()
			relist, err := w.store.BeginRelist(t.Context(), Relisting{})
			if err != nil {
				t.Fatal(err)
			}
			known := versionOrder{}
			stream := watch.NewFake()
			go func() {
				time.Sleep(time.Minute)
				known.see(c.known, "")
				stream.Action(watch.Bookmark, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
					ResourceVersion: "9", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
				}})
			}()
			if listed, err := r.readStream(t.Context(), stream, "3", relist, &known); listed != "9" || err != nil {
				t.Errorf("version %q, %v", listed, err)
			}
			w.store.calls.expect(t, "begin", c.want)
			w.observed.expect(t, "contact")
		}
	})
}

// TestAWatchThatDropsItsContextBringsTheList, as it would without a wrapped transport, and once.
func TestAWatchThatDropsItsContextBringsTheList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "", opens(added("a@3"), initialEnd("9")), opens())
		w.server.streamsLists = true
		w.opts.Schema = func(context.Context) (string, error) { return "s", nil }
		w.run()
		w.server.requests.expect(t, "STREAM NotOlderThan", "WATCH rv=9")
		w.store.calls.expect(t, "begin", "item a@3", "finish 9", "replace 9")
		if w.resumer.schema == nil {
			t.Error("lists count as not seen, either")
		}
	})
}

// TestWhichErrorsAnotherFormOfTheListWouldHave: these are tried again later, in the same form.
func TestWhichErrorsAnotherFormOfTheListWouldHave(t *testing.T) {
	for err, want := range map[error]bool{
		nil:                              false,
		fmt.Errorf("%w: full", errStore): false,
		fmt.Errorf("%w: %w", request.ErrNoAnswer, errors.New("")): false,
		fmt.Errorf("page: %w", io.ErrUnexpectedEOF):               false,
		context.Canceled:                         false,
		apierrors.NewResourceExpired("too old"):  false,
		apierrors.NewTooManyRequests("later", 1): false,
		request.ErrUnsupported:                   true,
		request.ErrNotSeen:                       true,
		apierrors.NewBadRequest("limit"):         true,
	} {
		if got := byItemError(err); errors.Is(got, errNotByItem) != want || !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
