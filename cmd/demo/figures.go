package main

// aimObjects is how many Pods the aims are for.
const aimObjects = 50_000

// figures compares what was measured with what warmwatch is to reach with aimObjects
// Pods. With another number of them there are no aims.
func (r *result) figures() []figure {
	var all []figure
	if s := r.scene("nothing-changed"); s.played() {
		all = append(all,
			atLeast("warm restart to HasSynced: times faster than client-go", ratio(s.ClientGo.HasSyncedMillis, s.Warmwatch.HasSyncedMillis), 30, "at least 30"),
			atMost("warm restart with nothing changed: bytes received", float64(s.Warmwatch.BytesReceived), idleBytes, "under 100,000"),
		)
	}
	if s := r.scene("plain-handler"); s.played() {
		all = append(all, atLeast("warm restart until a handler got every OnAdd: times faster than client-go",
			ratio(s.ClientGo.AllAddedMillis, s.Warmwatch.AllAddedMillis), 5, "at least 5"))
	}
	// The ratio is of what a server sends. How many a durable handler can be told
	// is seen from memory only, where a server does not send even client-go so many.
	if len(r.Streams) > 0 {
		rate := r.Streams[0].PerSecond
		if plain, stock := rate[warmPlain.String()], rate[stockPlain.String()]; plain > 0 && stock > 0 {
			all = append(all, atLeast("events a second from the server to a plain handler, relative to client-go's", plain/stock, 0.8, "at least 0.8"))
		}
	}
	if len(r.Streams) > 1 {
		if durable := r.Streams[1].PerSecond[warmDurable.String()]; durable > 0 {
			all = append(all, atLeast("events a second from memory to a durable handler", durable, 15_000, "at least 15,000"))
		}
	}
	if r.Objects != aimObjects {
		for i := range all {
			all[i].Aim, all[i].Met = "", nil
		}
	}
	return all
}

func (r *result) scene(name string) *scene {
	for _, s := range r.Scenes {
		if s.Name == name {
			return s
		}
	}
	return nil
}

func (s *scene) played() bool { return s != nil && s.Warmwatch != nil && s.ClientGo != nil }

func (r *result) allTrue() bool {
	for _, s := range r.Scenes {
		if !s.ok() {
			return false
		}
	}
	return true
}

// ratio is 0 when one of the two was not measured.
func ratio(a, b *float64) float64 {
	if a == nil || b == nil || *b == 0 {
		return 0
	}
	return *a / *b
}

func atLeast(name string, value, bound float64, aim string) figure {
	return figure{Name: name, Value: value, Aim: aim, Met: new(value >= bound)}
}

func atMost(name string, value, bound float64, aim string) figure {
	return figure{Name: name, Value: value, Aim: aim, Met: new(value <= bound)}
}
