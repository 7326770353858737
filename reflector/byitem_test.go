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
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch/internal/request"
)

// TestAListOfKnownObjects: nothing comes of what is known, however long that takes,
// and the newest object of the list may be one of them.
func TestAListOfKnownObjects(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, c := range []struct {
			known string // Version of the newest object that is known.
			want  string // What is stored.
		}{{"4", "finish 9"}, {"10", "finish "}} { // Newer than the list: no watch is resumed there.
			w := newWorld(t, "3")
			r := w.open()
			relist, err := w.store.BeginRelist(Relisting{})
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
			if listed, err := r.readItems(t.Context(), stream, "3", relist, &known); listed != "9" || err != nil {
				t.Errorf("version %q, %v", listed, err)
			}
			w.store.calls.expect(t, "begin", c.want)
			w.observed.expect(t, "contact")
		}
	})
}

// TestAListIsReadItemByItem only where a watch may begin with all objects, and its request comes to a
// request.Transport: this one's does not. Nor is it asked for a second time then.
func TestAListIsReadItemByItem(t *testing.T) {
	for name, c := range map[string]struct {
		streams, gateClosed bool
		want                []string
	}{
		"it may":                 {true, false, []string{"STREAM NotOlderThan", "LIST limit=500", "WATCH rv=9"}},
		"the client says no":     {false, false, []string{"LIST limit=500", "WATCH rv=9"}},
		"a feature gate says no": {true, true, []string{"LIST limit=500", "WATCH rv=9"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.gateClosed {
				clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, false)
			}
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "")
				if w.server.streamsLists = c.streams; len(c.want) == 3 {
					w.server.then(opens(added("x@3"))) // An ordinary watch could bring as much.
				}
				w.server.then(lists("9", "a@3"), opens())
				w.opts.Schema = func(context.Context) (string, error) { return "s", nil }
				w.run()
				w.server.requests.expect(t, c.want...)
				w.store.expectContents(t, "a@3")
				w.server.then(lists("12", "a@3"), opens())
				w.force()
				advance(firstBackoff)
				w.server.requests.expect(t, "LIST rv=9 NotOlderThan", "WATCH rv=12")
			})
		})
	}
}

// TestAnErrorOfTheStoreIsNoReasonToListInPages, which would bring the same items to the same store.
func TestAnErrorOfTheStoreIsNoReasonToListInPages(t *testing.T) {
	for name, spoil := range map[string]func(*memory){
		"of Item":   func(m *memory) { m.itemErr = errNetwork },
		"of Finish": func(m *memory) { m.finishErr = errNetwork },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w, asked := newWorld(t, "5"), &journal{}
				spoil(w.store)
				w.listsFrom(&rest.Config{Transport: request.Transport{RoundTripper: slowServer{t: t, asked: asked}}})
				w.opts.Relist = because(false, false)
				if _, err := w.open().List(metav1.ListOptions{}); !errors.Is(err, errNetwork) {
					t.Errorf("the error is %v", err)
				}
				if requests := asked.take(); len(requests) != 1 {
					t.Errorf("asked for %q", requests)
				}
			})
		})
	}
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
