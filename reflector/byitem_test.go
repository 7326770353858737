package reflector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"

	"github.com/warmwatch/warmwatch/internal/request"
)

// TestAListIsReadItemByItem only where a watch may begin with all objects, and its request comes to a
// request.Transport: this one's does not.
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
				w.run()
				w.server.requests.expect(t, c.want...)
				w.store.expectContents(t, "a@3")
			})
		})
	}
}

// TestWhichErrorsAnotherFormOfTheListWouldHave: these are tried again later, in the same form.
func TestWhichErrorsAnotherFormOfTheListWouldHave(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false,
		fmt.Errorf("%w: %w", request.ErrNoAnswer, errors.New("")): false,
		fmt.Errorf("page: %w", io.ErrUnexpectedEOF):               false,
		context.Canceled:                         false,
		apierrors.NewResourceExpired("too old"):  false,
		apierrors.NewTooManyRequests("later", 1): false,
		request.ErrUnsupported:                   true,
		request.ErrNotSeen:                       true,
		apierrors.NewBadRequest("limit"):         true,
	} {
		if got := byItemError(err); errors.Is(got, errNotThisWay) != want || !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
