package warmwatch_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// onDecode is called once, when a decoded is decoded next.
var onDecode func()

// decoded is an object of which a test knows when it is decoded.
type decoded struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
}

func (d *decoded) DeepCopyObject() runtime.Object {
	c := *d
	d.DeepCopyInto(&c.ObjectMeta)
	return &c
}

func (d *decoded) UnmarshalJSON(b []byte) error {
	type plain decoded
	if f := onDecode; f != nil {
		onDecode = nil
		f()
	}
	return json.Unmarshal(b, (*plain)(d))
}

// TestADeletionWhileATakeoverIsBeingCheckedIsTold (Q2): what the file owes to the handlers of the first informer was
// looked for already, and that of the second one is being read.
func TestADeletionWhileATakeoverIsBeingCheckedIsTold(t *testing.T) {
	for _, anew := range []bool{false, true} {
		t.Run(fmt.Sprintf("made anew: %t", anew), func(t *testing.T) {
			bubble(t, func(t *testing.T) { checkDeletedBetween(t, anew) })
		})
	}
}

func checkDeletedBetween(t *testing.T, anew bool) {
	f, path := newSource(t), testsupport.Path(t)
	for i := range 1500 {
		f.put(configMap(fmt.Sprintf("o%04d", i)))
	}
	f.put(configMap("zz"))
	g := newSource(t, &decoded{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "h"}})
	addOther := func(p *process) {
		gvr := schema.GroupVersionResource{Group: "x", Version: "v1", Resource: "zs"}
		s, err := p.cache.NewSharedIndexInformer(g, &decoded{}, warmwatch.InformerOptions{Resource: gvr})
		if err != nil {
			t.Fatal(err)
		}
		start(t, s)
	}
	first := launch(t, path, f, nil)
	for _, name := range []string{"told", "in its list", "absent"} {
		addDurable(t, first, name)
	}
	add(t, first.informer)
	first.run()
	addOther(first)
	settle()
	first.stop()

	_, hold := openQuietly(t, path)
	g.remove("h")
	second := launch(t, path, f, impatient)
	slow := func() *recorder { return &recorder{during: func(string) { time.Sleep(time.Second) }} }
	handlers := map[string]*recorder{"told": addDurable(t, second, "told"), "in its list": slow(), "plain, in its list": slow()}
	if _, err := second.informer.AddDurableEventHandler("in its list", handlers["in its list"]); err != nil {
		t.Fatal(err)
	}
	if _, err := second.informer.AddEventHandler(handlers["plain, in its list"]); err != nil {
		t.Fatal(err)
	}
	second.run()
	addOther(second)
	advance(20 * time.Second)
	onDecode = func() {
		f.remove("zz")
		if anew {
			f.put(configMap("zz"))
		}
		time.Sleep(100 * time.Millisecond) // Until the event is applied.
	}
	hold()
	advance(10 * time.Second)
	if st := second.cache.Status(); st.MemoryOnly || onDecode != nil {
		t.Fatalf("not taken over: %v; or without a look at what is owed to the other one's handlers", st.Err)
	}
	handlers["absent"] = addDurable(t, second, "absent")
	handlers["plain, added later"], _ = add(t, second.informer)
	advance(2 * time.Hour)
	for name, r := range handlers {
		told := slices.DeleteFunc(r.take(), func(event string) bool { return !strings.Contains(event, "ns/zz") })
		// A plain one is told an update of what was replaced, as by client-go.
		if plain := strings.HasPrefix(name, "plain"); !heardLost(told, "ns/zz") && (!plain || !anew) {
			t.Errorf("%s: not told that zz is gone: %q", name, told)
		}
		if last := told[max(0, len(told)-1):]; anew && (len(last) == 0 || !strings.Contains(last[0], "1503")) {
			t.Errorf("%s: told %q", name, told)
		}
	}
}
