package debug

import (
	"bytes"
	"cmp"
	"crypto/rand"
	_ "embed" // The templates.
	"encoding/json"
	"errors"
	"fmt"
	html "html/template"
	"net/http"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"
	"unicode"

	"github.com/warmwatch/warmwatch"
)

//go:embed page.html
var pageHTML string

//go:embed page.txt
var pageText string

// functions can be called in the templates.
var functions = map[string]any{"age": age, "size": size, "runbook": runbook, "line": line, "json": indented, "counts": counts, "few": few}

// few returns how many of n keys a page shows. JSON has all.
func few(n int) int { return min(n, 20) }

var (
	htmlPages = html.Must(html.New("").Funcs(functions).Parse(pageHTML))
	textPages = template.Must(template.New("").Funcs(functions).Parse(pageText))
)

// contentTypes has the content type of each format.
var contentTypes = map[string]string{"html": "text/html", "json": "application/json", "text": "text/plain"}

// formatOf returns the format that a request asks for.
func formatOf(r *http.Request) string {
	if format := r.URL.Query().Get("format"); format != "" {
		return format
	}
	for accepted := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		accepted, _, _ = strings.Cut(accepted, ";")
		for format, contentType := range contentTypes {
			if strings.TrimSpace(accepted) == contentType {
				return format
			}
		}
	}
	return "text"
}

// write writes data as JSON, or by the template of this name.
func (h handler) write(w http.ResponseWriter, r *http.Request, status int, name string, data any) {
	format, nonce := formatOf(r), rand.Text()
	page := struct {
		Options
		Nonce string // Of the style.
		Data  any
	}{h.opts, nonce, data}
	var body bytes.Buffer
	var err error
	switch format {
	case "html":
		err = htmlPages.ExecuteTemplate(&body, name, page)
	case "json":
		_, err = body.WriteString(indented(data))
	case "text":
		columns := tabwriter.NewWriter(&body, 0, 8, 2, ' ', 0)
		err = errors.Join(textPages.ExecuteTemplate(columns, name, page), columns.Flush())
	default:
		http.Error(w, "format is html, text or json", http.StatusBadRequest)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", contentTypes[format]+"; charset=utf-8")
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'nonce-"+nonce+"'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	header.Set("Vary", "Accept")
	w.WriteHeader(status)
	_, _ = body.WriteTo(w) // The client has gone.
}

// indented returns JSON.
func indented(data any) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false) // A template does.
	return cmp.Or(text(encoder.Encode(data)), b.String())
}

// age returns how long ago something was.
func age(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return time.Since(t).Round(time.Second).String()
}

// size returns a number of bytes for people.
func size(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n, " B")
	}
	f, unit := float64(n), 0
	for ; f >= 1000 && unit < 4; unit++ {
		f /= 1000
	}
	return fmt.Sprintf("%.1f %cB", f, " kMGT"[unit])
}

// withoutSyntax makes words of the JSON of a map.
var withoutSyntax = strings.NewReplacer("null", "", "{", "", "}", "", `"`, "", ":", " ", ",", ", ")

// counts returns the counts in a map as a line, in the order of its keys.
func counts(m any) string {
	encoded, err := json.Marshal(m)
	return cmp.Or(text(err), withoutSyntax.Replace(string(encoded)))
}

// runbook returns where a code is explained.
func runbook(code warmwatch.Code) string {
	return "https://github.com/warmwatch/warmwatch/blob/main/docs/operations.md#" + strings.ToLower(string(code))
}

// line replaces characters that would end a line, or command a terminal.
func line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}
