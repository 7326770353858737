package storm_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// wildServer is a group of API servers, which serve ConfigMaps by HTTP (storm_http_test.go) to
// clients in a synctest bubble. While it storms, they are wild, see faultLocked.
type wildServer struct {
	t      *testing.T
	server *http.Server
	pipes  chan net.Conn
	closed chan struct{}

	mu      sync.Mutex
	rng     *rand.Rand
	storms  bool
	names   []string
	states  map[string][]objectState // By name, oldest first.
	events  []wildEvent              // events[i] has version i+1.
	lost    int                      // Watches from before this version have expired,
	lostOld int                      // and exact lists from before this one.
	schema  int
	members [3]wildMember
	changed chan struct{} // Closed with the next change.
	ended   chan struct{} // Closed when watches end.
	asked   map[string]int
	bulk    bool // Some objects are large.
}

// wildMember is one API server. What it serves lacks the last versions, and its schema may be an old one.
type wildMember struct{ behind, schema int }

type objectState struct {
	version int
	object  *corev1.ConfigMap // Nil: it was deleted.
}

type wildEvent struct{ before, now *corev1.ConfigMap }

// fault is how a request is answered.
type fault struct {
	delay  time.Duration
	code   int // Not 0: it is refused with it.
	behind int // The answer lacks so many versions that were asked for.
	// cut, if not 0, has the answer end after so many thousandths, or a watch after as many times
	// 100 bytes. clean: so that the connection does not show it.
	cut   int
	clean bool
}

// stormSelector selects the objects that are listed. Others were, or will be.
const stormSelector = "storm=in"

// newWildServer makes a server with objects in a namespace; without one they are in two.
func newWildServer(t *testing.T, rng *rand.Rand, namespace string, objects int) *wildServer {
	s := &wildServer{
		t: t, rng: rng, pipes: make(chan net.Conn), closed: make(chan struct{}), states: map[string][]objectState{},
		changed: make(chan struct{}), ended: make(chan struct{}),
		asked: map[string]int{}, bulk: *stormBulk && rng.IntN(3) == 0,
	}
	for i := range objects {
		name := fmt.Sprintf("ns/o%03d", i)
		if namespace == "" && i >= objects/2 {
			name = fmt.Sprintf("other/o%03d", i-objects/2)
		}
		s.names = append(s.names, name)
		s.put(name, true)
	}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: time.Hour}
	go func() { _ = s.server.Serve(s) }()
	t.Cleanup(func() {
		close(s.closed)
		_ = s.server.Close()
		time.Sleep(time.Minute) // Virtual time: what answers late ends.
		synctest.Wait()
	})
	return s
}

// put makes a new version of an object.
func (s *wildServer) put(name string, selected bool) {
	before, rv := s.stateOf(name, len(s.events)), strconv.Itoa(len(s.events)+1)
	namespace, base, _ := strings.Cut(name, "/")
	cm := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: base, UID: types.UID("uid-" + rv), ResourceVersion: rv, Labels: map[string]string{"storm": "in"},
		},
		Data: map[string]string{"rv": rv, "long": strings.Repeat(base, s.rng.IntN(30))},
	}
	if s.bulk && s.rng.IntN(20) == 0 { // A relist writes 2 MiB at once, so a process can be killed in between.
		cm.Data["long"] = strings.Repeat("x", 300<<10)
	}
	if before != nil {
		cm.UID = before.UID
	}
	if !selected {
		cm.Labels["storm"] = "out"
	}
	s.add(name, before, cm)
}

func (s *wildServer) remove(name string) {
	if before := s.stateOf(name, len(s.events)); before != nil {
		s.add(name, before, nil)
	}
}

func (s *wildServer) add(name string, before, now *corev1.ConfigMap) {
	s.events = append(s.events, wildEvent{before, now})
	s.states[name] = append(s.states[name], objectState{len(s.events), now})
	close(s.changed)
	s.changed = make(chan struct{})
}

// stateOf returns an object as of a version, nil if there was none.
func (s *wildServer) stateOf(name string, version int) *corev1.ConfigMap {
	states := s.states[name]
	i := sort.Search(len(states), func(i int) bool { return states[i].version > version })
	if i == 0 {
		return nil
	}
	return states[i-1].object
}

// change changes the server.
func (s *wildServer) change(change func(*wildServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// changeObjectsLocked makes some changes.
func (s *wildServer) changeObjectsLocked() {
	for range s.rng.IntN(3) {
		name := s.names[s.rng.IntN(len(s.names))]
		switch s.rng.IntN(8) {
		case 0:
			s.remove(name)
		case 1:
			s.remove(name)
			s.put(name, true)
		case 2:
			s.put(name, false)
		default:
			s.put(name, true)
		}
	}
}

// loseHistoryLocked forgets it, and ends the watches.
func (s *wildServer) loseHistoryLocked() {
	s.lost = len(s.events)
	if s.rng.IntN(3) == 0 {
		s.lostOld = max(0, s.lost-s.rng.IntN(5))
	}
	s.endWatchesLocked()
}

func (s *wildServer) endWatchesLocked() {
	close(s.ended)
	s.ended = make(chan struct{})
}

// setStorm begins or ends that the servers are wild.
func (s *wildServer) setStorm(storms bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storms = storms
	if !storms {
		for i := range s.members {
			s.members[i] = wildMember{schema: s.schema}
		}
		s.endWatchesLocked()
	}
}

// faultLocked decides how the next request is answered, and what changes before.
func (s *wildServer) faultLocked() (f fault) {
	if !s.storms {
		return f
	}
	if s.rng.IntN(3) == 0 {
		s.changeObjectsLocked()
	}
	switch s.rng.IntN(14) {
	case 0:
		f.delay = time.Duration(s.rng.IntN(8000)) * time.Millisecond
	case 1:
		codes := []int{400, 403, 404, 406, 410, 422, 429, 500, 503, 504}
		f.code = codes[s.rng.IntN(len(codes))]
	case 2:
		f.cut, f.clean = 1+s.rng.IntN(1000), s.rng.IntN(2) == 0
	case 3:
		f.behind = 1 + s.rng.IntN(20)
	case 4:
		s.loseHistoryLocked()
	}
	for i := range s.members {
		if s.rng.IntN(6) == 0 {
			s.members[i].behind = max(0, s.rng.IntN(12)-8)
		}
		if s.rng.IntN(12) == 0 {
			s.members[i].schema = s.schema
		}
	}
	if s.rng.IntN(60) == 0 {
		s.schema++
	}
	return f
}

func isSelected(cm *corev1.ConfigMap) bool { return cm != nil && cm.Labels["storm"] == "in" }

// read returns an object as a member reads it.
func (m wildMember) read(cm *corev1.ConfigMap) *corev1.ConfigMap {
	cm = cm.DeepCopy()
	cm.Data["default"] = fmt.Sprint("of schema ", m.schema)
	return cm
}

// contents are the objects that are selected, by uid.
func (s *wildServer) contents(withSchema bool) map[types.UID]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	contents := map[types.UID]string{}
	for _, cm := range s.objectsLocked(len(s.events)) {
		contents[cm.UID] = contentOf(wildMember{schema: s.schema}.read(cm), withSchema)
	}
	return contents
}

// objectsLocked returns the objects that were selected at a version, sorted.
func (s *wildServer) objectsLocked(version int) (objects []*corev1.ConfigMap) {
	for _, name := range s.names {
		if cm := s.stateOf(name, version); isSelected(cm) {
			objects = append(objects, cm)
		}
	}
	return objects
}

func contentOf(cm *corev1.ConfigMap, withSchema bool) string {
	data := maps.Clone(cm.Data)
	if !withSchema {
		delete(data, "default")
	}
	return fmt.Sprintf("%s/%s@%s %v", cm.Namespace, cm.Name, cm.ResourceVersion, data)
}
