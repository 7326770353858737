// Package debug shows people what a [warmwatch.Cache] does: what is in its file, how each informer has started, what
// waits for whom, what is wrong, and what has happened. It does not listen: mount [Handler] where only operators have
// access, beside net/http/pprof.
package debug

import (
	"errors"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/warmwatch/warmwatch"
)

// Options configures [Handler]. The zero value is valid: a page of numbers. It names an object only if a handler is
// busy with it, or an error names it.
type Options struct {
	// Objects adds GET objects: the keys of an informer, and each of its objects. Data and annotations of Secrets are
	// never shown.
	Objects bool
	// Actions adds POST compare, which lists the server's objects and shows what is missing, surplus or different in the
	// cache, and POST relist, which repairs the cache.
	Actions bool
}

// Handler returns the page of a Cache. It can be mounted under any path, with [http.StripPrefix]; its links are
// relative. The query chooses its form (?format=html, text, json), else the first of these in the header Accept, else
// it is text. It needs no script, loads nothing, and sends nothing to the API server. It has no authentication. It
// refuses requests that other sites make a browser send, as [http.CrossOriginProtection] does.
func Handler(c *warmwatch.Cache, o Options) http.Handler {
	h := handler{c, o}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", h.overview)
	if o.Objects {
		mux.HandleFunc("GET /objects", h.objects)
	}
	if o.Actions {
		mux.HandleFunc("POST /compare", h.compare)
		mux.HandleFunc("POST /relist", h.relist)
	}
	protected := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, query, _ := strings.Cut(r.RequestURI, "?")
		switch at := r.URL.Path; {
		case at == "" && !strings.HasSuffix(asked, "/"): // Relative links need the slash.
			w.Header().Set("Location", "./"+path.Base(asked)+"/?"+query)
			w.WriteHeader(http.StatusTemporaryRedirect)
			return
		case !strings.HasPrefix(at, "/"): // StripPrefix has removed the slash.
			r = r.Clone(r.Context())
			r.URL.Path = "/" + at
		}
		protected.ServeHTTP(w, r)
	})
}

type handler struct {
	cache *warmwatch.Cache
	opts  Options
}

// An overview is the page.
type overview struct {
	Status   warmwatch.Status
	Metrics  warmwatch.Metrics
	Timeline []warmwatch.Event // Newest first.
}

func (h handler) overview(w http.ResponseWriter, r *http.Request) {
	h.write(w, r, http.StatusOK, "overview", overview{h.cache.Status(), h.cache.Metrics(), h.timeline(time.Time{})})
}

// timeline returns the events since a time, newest first.
func (h handler) timeline(since time.Time) []warmwatch.Event {
	events := h.cache.Timeline()
	slices.Reverse(events)
	return slices.DeleteFunc(events, func(e warmwatch.Event) bool { return e.Time.Before(since) })
}

// A problem is a problem of an informer, or of the file if Informer is empty.
type problem struct {
	Informer string
	warmwatch.Problem
}

// Problems returns the problems of the file, and then those of informers.
func (o overview) Problems() (all []problem) {
	fileHas := map[warmwatch.Code]bool{} // Each informer has these, too.
	for _, p := range o.Status.Problems {
		fileHas[p.Code] = true
		all = append(all, problem{"", p})
	}
	for _, name := range slices.Sorted(maps.Keys(o.Status.Informers)) {
		for _, p := range o.Status.Informers[name].Problems {
			if !fileHas[p.Code] {
				all = append(all, problem{name, p})
			}
		}
	}
	return all
}

// A comparison is the result of an informer's Compare.
type comparison struct {
	Informer string
	warmwatch.Difference
	Err string `json:",omitempty"`
}

// compare compares one informer, or all that run, with the server.
func (h handler) compare(w http.ResponseWriter, r *http.Request) {
	names := r.URL.Query()["informer"]
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(h.cache.Status().Informers))
	}
	all := []comparison{}
	for _, name := range names {
		found, err := warmwatch.Difference{}, errors.New("no informer of this name runs here")
		if s := h.cache.Informer(name); s != nil {
			found, err = s.Compare(r.Context())
		}
		all = append(all, comparison{name, found, text(err)})
	}
	h.write(w, r, http.StatusOK, "compare", all)
}

// A repair is what happened during Relist.
type repair struct {
	Timeline []warmwatch.Event // Newest first.
	Err      string            `json:",omitempty"`
}

func (h handler) relist(w http.ResponseWriter, r *http.Request) {
	begun, status := time.Now(), http.StatusOK
	err := h.cache.Relist(r.Context())
	if err != nil {
		status = http.StatusServiceUnavailable
	}
	h.write(w, r, status, "relist", repair{h.timeline(begun), text(err)})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
