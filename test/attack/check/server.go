package check

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/warmwatch/warmwatch/internal/testsupport/apiserver"
)

// names are so many that objects and index entries have pages of their own.
const names = 80

// NewServer returns a server at a version of the history of a seed, which is the same in
// each process. It is for a synctest bubble.
func NewServer(seed uint64, version int) *apiserver.Server {
	rng := rand.New(rand.NewPCG(seed, 7))
	s := apiserver.New(apiserver.Options{
		Rand: rng, Names: names, Fill: fill, PageDelay: 200 * time.Millisecond,
	})
	s.Advance(version)
	return s
}

func fill(rng *rand.Rand, obj apiserver.Object) {
	obj.(*corev1.ConfigMap).Data = map[string]string{
		"rv":    obj.GetResourceVersion(),
		"color": strings.Repeat(strconv.Itoa(rng.IntN(9)), 64),
		"pad":   strings.Repeat("x", rng.IntN(600)),
	}
}

// objectAt is what the change of this version made of its object.
func objectAt(s *apiserver.Server, version int) apiserver.Object {
	events := s.Events()
	if version < 1 || version > len(events) {
		return nil
	}
	return events[version-1].Object
}
