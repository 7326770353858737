package corrupt

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// count is of many outcomes.
type count struct {
	tries  int
	failed []int
	peak   int64
	longest,
	total int64
	ways    map[way]int
	results map[string]int
	classes map[string]map[string]int // By class and result, and by class and problem.
	kinds   map[string][]string       // Problems by kind, with their tries.
}

func newCount() *count {
	return &count{
		ways: map[way]int{}, results: map[string]int{}, classes: map[string]map[string]int{},
		kinds: map[string][]string{},
	}
}

func (c *count) add(o outcome) {
	class := o.Class
	if class == "" {
		class = "no damage"
	}
	if c.classes[class] == nil {
		c.classes[class] = map[string]int{}
	}
	c.tries++
	c.ways[o.Way]++
	c.results[o.Result]++
	c.classes[class]["tries"]++
	c.classes[class][o.Result]++
	c.peak, c.longest, c.total = max(c.peak, o.PeakBytes), max(c.longest, o.Milliseconds), c.total+o.Milliseconds
	seen := map[string]bool{}
	for _, p := range o.Problems {
		kind := fmt.Sprintf("%s | %s | %s", p.Kind, o.Way, class)
		if !seen[kind] {
			seen[kind] = true
			c.kinds[kind] = append(c.kinds[kind], fmt.Sprintf("%d (%s)", o.Try, o.Field))
		}
	}
	if len(seen) > 0 {
		c.failed = append(c.failed, o.Try)
		c.classes[class]["VIOLATIONS"]++
		slices.Sort(c.failed)
	}
}

func (c *count) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d damaged files, %d with violations; largest process %d MiB, longest try %d ms, all tries %d s\n",
		c.tries, len(c.failed), c.peak>>20, c.longest, c.total/1000)
	for _, w := range slices.Sorted(maps.Keys(c.ways)) {
		fmt.Fprintf(&b, "  %-24s %6d\n", w, c.ways[w])
	}
	columns := append([]string{"tries"}, slices.Sorted(maps.Keys(c.results))...)
	columns = append(columns, "VIOLATIONS")
	fmt.Fprintf(&b, "%-20s", "class")
	for _, column := range columns {
		fmt.Fprintf(&b, "  %s", column)
	}
	fmt.Fprintln(&b)
	for _, class := range slices.Sorted(maps.Keys(c.classes)) {
		fmt.Fprintf(&b, "%-20s", class)
		for _, column := range columns {
			fmt.Fprintf(&b, "  %*d", len(column), c.classes[class][column])
		}
		fmt.Fprintln(&b)
	}
	for _, kind := range slices.Sorted(maps.Keys(c.kinds)) {
		tries := c.kinds[kind]
		fmt.Fprintf(&b, "VIOLATION %s: %d tries: %s\n", kind, len(tries), strings.Join(tries[:min(8, len(tries))], ", "))
	}
	return b.String()
}
