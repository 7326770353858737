package keyfield

import (
	"strings"
	"testing"
)

func TestAKeyFieldIsCutOffAsItWasPut(t *testing.T) {
	fields := []string{"", "/", "a", "a/", "1/a", "a/b", strings.Repeat("x", 1000)}
	for _, first := range fields {
		for _, second := range fields {
			key := Of(first) + Of(second) + "rest"
			text, rest, ok := Cut(key)
			if again, last, okAgain := Cut(rest); text != first || again != second || last != "rest" || !ok || !okAgain {
				t.Errorf("%.40q is cut into %.40q, %.40q and %q", key, text, again, last)
			}
			if first != second && strings.HasPrefix(key, Of(second)) {
				t.Errorf("%.40q begins with the field %.40q", key, second)
			}
		}
	}
	for _, key := range []string{"", "1", "1/", "1/a", "2/a/", "-1/a/", "x/a/", "99999999999999999999/a/"} {
		if text, rest, ok := Cut(key); ok {
			t.Errorf("%q is cut into %q and %q", key, text, rest)
		}
	}
}
