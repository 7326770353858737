package corrupt

import (
	"fmt"
	"maps"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport/apiserver"
)

// problem is a difference from what is promised.
type problem struct {
	Kind   string // One of a few words, for the count.
	Detail string
}

func versions(state map[string]apiserver.Object) map[string]int {
	v := make(map[string]int, len(state))
	for key, obj := range state {
		v[key] = versionOf(obj)
	}
	return v
}

// differences lists the keys in which two differ, each as "key: want, got".
func differences(want, got map[string]int) (d []string) {
	for key, rv := range want {
		if got[key] != rv {
			d = append(d, fmt.Sprintf("%s: want %d, got %d", key, rv, got[key]))
		}
	}
	for key, rv := range got {
		if _, exists := want[key]; !exists {
			d = append(d, fmt.Sprintf("%s: want none, got %d", key, rv))
		}
	}
	slices.Sort(d)
	return d
}

func some(list []string) string {
	return fmt.Sprintf("%d: %v", len(list), list[:min(4, len(list))])
}

// checkStore compares a store with the server (A5), in each way to read it.
func checkStore(k kind, store cache.Indexer, state map[string]apiserver.Object) (found []problem) {
	objects := store.List()
	got := map[string]int{}
	for _, obj := range objects {
		key, err := cache.MetaNamespaceKeyFunc(obj)
		if err != nil {
			return []problem{{Kind: "wrong object", Detail: err.Error()}}
		}
		got[key] = versionOf(obj)
		if want, exists := state[key]; exists && versionOf(want) == got[key] && !apiequality.Semantic.DeepEqual(want, obj) {
			found = append(found, problem{Kind: "wrong object", Detail: fmt.Sprintf("%s at %d has other content", key, got[key])})
		}
	}
	if d := differences(versions(state), got); len(d) > 0 || len(got) != len(objects) {
		found = append(found, problem{Kind: "store", Detail: fmt.Sprintf("%s: List has %d objects; %s", k, len(objects), some(d))})
	}
	keys := store.ListKeys()
	slices.Sort(keys)
	if want := slices.Sorted(maps.Keys(state)); !slices.Equal(want, keys) {
		found = append(found, problem{Kind: "store", Detail: fmt.Sprintf("%s: ListKeys has %d keys, want %d", k, len(keys), len(want))})
	}
	for key, want := range state {
		obj, exists, err := store.GetByKey(key)
		if err != nil || !exists || versionOf(obj) != versionOf(want) {
			found = append(found, problem{Kind: "store", Detail: fmt.Sprintf("%s: GetByKey(%s): %t %d %v, want %d", k, key, exists, versionOf(obj), err, versionOf(want))})
			break
		}
	}
	return found
}

// checkIndices compares every index with a recomputation (A5).
func checkIndices(k kind, store cache.Indexer, state map[string]apiserver.Object) (found []problem) {
	for name, f := range indexers {
		want := map[string][]string{}
		for key, obj := range state {
			values, err := f(obj)
			if err != nil {
				return []problem{{Kind: "index", Detail: err.Error()}}
			}
			for _, v := range values {
				want[v] = append(want[v], key)
			}
		}
		values := store.ListIndexFuncValues(name)
		slices.Sort(values)
		if w := slices.Sorted(maps.Keys(want)); !slices.Equal(w, values) {
			found = append(found, problem{Kind: "index", Detail: fmt.Sprintf("%s, %s: values %v, want %v", k, name, values, w)})
		}
		for v, w := range want {
			slices.Sort(w)
			keys, err := store.IndexKeys(name, v)
			slices.Sort(keys)
			objects, err2 := store.ByIndex(name, v)
			if err != nil || err2 != nil || !slices.Equal(w, keys) || len(objects) != len(w) {
				found = append(found, problem{Kind: "index", Detail: fmt.Sprintf("%s, %s=%s: %d keys, %d objects, want %d, %v %v",
					k, name, v, len(keys), len(objects), len(w), err, err2)})
			}
		}
	}
	return found
}

// checkBelief compares what a handler believes with the server (D1, D2, D3).
func checkBelief(who string, b *belief, state map[string]apiserver.Object) (found []problem) {
	known, _, wrong := b.state()
	var stale, phantom []string
	for key, rv := range versions(state) {
		if known[key] != rv {
			stale = append(stale, fmt.Sprintf("%s: want %d, knows %d", key, rv, known[key]))
		}
	}
	for key := range known {
		if _, exists := state[key]; !exists {
			phantom = append(phantom, key)
		}
	}
	slices.Sort(stale)
	slices.Sort(phantom)
	if len(stale) > 0 {
		found = append(found, problem{Kind: "handler: change not delivered", Detail: who + ": " + some(stale)})
	}
	for _, key := range phantom {
		found = append(found, problem{Kind: "handler: deletion not delivered", Detail: who + ": " + key})
	}
	for _, w := range wrong {
		found = append(found, problem{Kind: "handler: got nonsense", Detail: who + ": " + w})
	}
	return found
}

// check compares everything with the server. It stops where something is wrong, unless all of that is to be known.
func (l *life) check(servers map[kind]*apiserver.Server, all bool) (found []problem) {
	for _, k := range kinds {
		state := servers[k].Objects()
		store := l.informers[k].GetIndexer()
		for _, compare := range []func() []problem{
			func() (p []problem) {
				for _, name := range slices.Sorted(maps.Keys(l.durable[k])) {
					p = append(p, checkBelief(fmt.Sprintf("%s, durable %s", k, name), l.durable[k][name], state)...)
				}
				return append(p, checkBelief(fmt.Sprintf("%s, plain", k), l.plain[k], state)...)
			},
			func() []problem { return checkStore(k, store, state) },
			func() []problem { return checkIndices(k, store, state) },
		} {
			if found = append(found, compare()...); len(found) > 0 && !all {
				return found
			}
		}
	}
	return found
}

// checkReads is for every moment. All that is served was there once (S2). From HasSynced on, an index has only objects
// of its value (A5), and nothing is missing that is as it was at a version that the cache has reached (A7).
func (l *life) checkReads(k kind, server *apiserver.Server, since int) (found []problem) {
	synced, store := l.informers[k].HasSynced(), l.informers[k].GetIndexer()
	reads := map[string][]any{"": store.List()}
	for c := range colors {
		if objects, err := store.ByIndex(byColor, colorName(c)); err == nil { // It may have waited for too long.
			reads[colorName(c)] = objects
		}
	}
	if l.ctx.Err() != nil { // It has ended meanwhile.
		return nil
	}
	history, unchanged := server.Events(), server.ObjectsAt(since)
	for _, e := range history[since:] {
		delete(unchanged, apiserver.Key(e.Object))
	}
	for color, objects := range reads {
		served, lacks := map[string]bool{}, []string{}
		for _, obj := range objects {
			key, err := cache.MetaNamespaceKeyFunc(obj)
			served[key] = true
			rv := versionOf(obj)
			if err != nil || rv < 1 || rv > len(history) || synced && color != "" && colorOf(obj) != color ||
				!apiequality.Semantic.DeepEqual(history[rv-1].Object, obj) {
				found = append(found, problem{Kind: "served: wrong object", Detail: fmt.Sprintf("%s %s: %s at %d, %v", k, color, key, rv, err)})
			}
		}
		for key, obj := range unchanged {
			if synced && !served[key] && (color == "" || colorOf(obj) == color) {
				lacks = append(lacks, key)
			}
		}
		if len(lacks) > 0 {
			found = append(found, problem{Kind: "served: less", Detail: fmt.Sprintf("%s %s: %d objects, without %s", k, color, len(objects), some(lacks))})
		}
	}
	return found
}
