package warmwatch

import "testing"

// TestAListOfTheNewestStateDecides, if it began after the file was found ahead, as it is.
func TestAListOfTheNewestStateDecides(t *testing.T) {
	see := func(l *lead) { l.see(true) }
	newest := func(l *lead) { l.relistBegun(true) }
	anyState := func(l *lead) { l.relistBegun(false) }
	complete := func(l *lead) { l.relistEnded(true) }
	cut := func(l *lead) { l.relistEnded(false) }
	for name, c := range map[string]struct {
		steps []func(*lead)
		want  bool
	}{
		"it is complete":                    {[]func(*lead){see, newest, complete}, true},
		"it is not complete yet":            {[]func(*lead){see, newest}, false},
		"it was cut":                        {[]func(*lead){see, newest, cut}, false},
		"it was cut, and an older one came": {[]func(*lead){see, newest, cut, anyState, complete}, false},
		"it may be older than the file":     {[]func(*lead){see, anyState, complete}, false},
		"it began before":                   {[]func(*lead){newest, see, complete}, false},
		"others come later":                 {[]func(*lead){see, newest, complete, see, anyState, cut}, true},
		"the file changed meanwhile":        {[]func(*lead){see, newest, (*lead).forget, see, complete}, false},
		"the file has changed since":        {[]func(*lead){see, newest, complete, (*lead).forget, see}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var l lead
			for _, step := range c.steps {
				step(&l)
			}
			if got := l.isDecided(); got != c.want {
				t.Errorf("it decides: %t", got)
			}
		})
	}
}

// TestAListIsDemandedOnce after the server was heard for a minute, whether or not at a stretch.
func TestAListIsDemandedOnce(t *testing.T) {
	var l lead
	demanded, heard := 0, 0
	for i := range 5 * leadPatience {
		hears := i%3 > 0
		if hears {
			heard++
		}
		if l.see(hears) {
			demanded++
			if heard != leadPatience {
				t.Errorf("demanded after %d", heard)
			}
		}
	}
	if demanded != 1 {
		t.Errorf("demanded %d times", demanded)
	}
}
