package warmwatch_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestWhatAnInitialListToldOfIsNotFoldedWithWhatCameSince: a handler that hangs in its initial list
// was told of some objects as they were later than when the list began. The deltas that
// wait for it do not begin before that.
func TestWhatAnInitialListToldOfIsNotFoldedWithWhatCameSince(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const objects = 4000
		f := newSource(t)
		for i := range objects {
			f.put(configMap(fmt.Sprintf("o%04d", i), "0"))
		}
		p := launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.MaxBacklogBytes = 1 })
		p.run()
		settle()

		told, hang := 0, make(chan struct{})
		r := &recorder{during: func(string) {
			if told++; told == 1 || told == 3500 {
				<-hang
			}
		}}
		if _, err := p.informer.AddDurableEventHandler("slow", r); err != nil {
			t.Fatal(err)
		}
		settle() // It hangs with the first chunks read.
		const late = "p"
		f.put(configMap(late, "added"))
		settle()
		hang <- struct{}{}
		settle() // It hangs again, with more of them read.
		for i := range 10 {
			f.put(configMap(late, fmt.Sprint(i)))
		}
		// So that more waits than the tail keeps.
		content := strings.Repeat("x", 1<<20)
		for i := range 20 {
			f.put(configMap("q", content+fmt.Sprint(i)))
			settle()
		}
		hang <- struct{}{}
		settle()
		var events []string
		for _, e := range r.take() {
			if strings.Contains(e, "/"+late+"@") {
				events = append(events, strings.Fields(e)[0])
			}
		}
		if len(events) == 0 || events[0] != "add" || strings.Contains(strings.Join(events[1:], " "), "add") {
			t.Errorf("told of %v, expected one addition and then updates", events)
		}
		t.Logf("told of %v", events)
		if _, exists, err := p.informer.GetStore().GetByKey("ns/" + late); err != nil || !exists {
			t.Errorf("the object is there: %v, %v", exists, err)
		}
	})
}
