package e2e

import (
	"strings"
	"testing"
)

// TestWhatALifeMayStartOverPending: a life begins where the cursor of the last one was stored,
// and delivers in the same order what was delivered from there on.
func TestWhatALifeMayStartOverPending(t *testing.T) {
	const before = "add a - 1|add b - 1|lost a - 1|lost b - 1|add a - 2|add b - 2|update a 2 3"
	for next, ok := range map[string]bool{
		"update a 2 3|delete a - 3":                             true,
		"delete a - 3":                                          true,
		"lost a - 1|lost b - 1|add a - 2":                       true,
		"lost a - 1|add a - 2":                                  false,
		"lost b - 1|add b - 2|update a 2 3":                     false,
		"lost b - 1|add a - 2|add b - 2|update a 2 3|add c - 1": true,
		"lost b - 1|lost b - 1|add a - 2":                       false,
		"lost b - 1|add c - 1":                                  false,
		"add a - 2|update a 2 3":                                false,
		"add b - 2|add a - 2":                                   false,
		"lost a - 1|lost b - 1|add a - 2|add c - 1":             false,
	} {
		s := story{known: knowledge{}}
		for life, lines := range []string{2: before, 3: next} {
			var err error
			for line := range strings.SplitSeq(lines, "|") {
				if line == "" {
					continue
				}
				if err = s.hear(parseDelivery(line), life); err != nil {
					break
				}
			}
			if want := life < 3 || ok; (err == nil) != want {
				t.Errorf("life %d, %s: %v", life, lines, err)
			}
		}
	}
}

// parseDelivery reads what the stories above are written in: a kind, a key, the version
// before, or -, and the version now.
func parseDelivery(line string) delivery {
	f := strings.Fields(line)
	return delivery{Kind: f[0], Key: f[1], Old: strings.TrimPrefix(f[2], "-"), New: f[3]}
}
