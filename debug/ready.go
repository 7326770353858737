package debug

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/warmwatch/warmwatch"
)

// ReadyCheck returns a check for a readiness probe, in the form of controller-runtime's healthz.Checker. It returns nil
// once every informer that Status lists serves its cache, from disk or from the server. Its error names the others.
// While there are no informers, it returns an error: a program is not ready before they run. client-go's own informers
// do not count.
//
// An informer that serves goes on to do so: the check stays nil while the server is away. A program that starts then is
// ready if the file has its objects. If an informer is added later, the check fails until that one serves. If an
// informer runs only in the leader, make it when the program leads. Whether the cache has caught up with the server is
// another question, see [warmwatch.SharedIndexInformer.CaughtUp].
//
// Do not use it, or anything else of Status, for a liveness probe. A restart mends neither a full disk nor a server
// that is away.
func ReadyCheck(c *warmwatch.Cache) func(*http.Request) error {
	return func(*http.Request) error {
		informers := c.Status().Informers
		if len(informers) == 0 {
			return errors.New("no informer runs yet")
		}
		maps.DeleteFunc(informers, func(_ string, st warmwatch.InformerStatus) bool {
			return st.StartedFrom == "disk" || st.Relists > 0 || st.Phase == ""
		})
		if len(informers) == 0 {
			return nil
		}
		return fmt.Errorf("these informers do not serve their cache yet: %s", strings.Join(slices.Sorted(maps.Keys(informers)), "; "))
	}
}
