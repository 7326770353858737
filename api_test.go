package warmwatch_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateAPI = flag.Bool("api.update", false, "write the golden files of TestTheAPIIsThatOfTheGoldenFiles anew")

// TestTheAPIIsThatOfTheGoldenFiles: whoever changes what a package exports changes testdata/api as well, with
// -api.update. They list what `go doc -short` does, with fields and methods.
func TestTheAPIIsThatOfTheGoldenFiles(t *testing.T) {
	for _, dir := range []string{".", "checkpoint", "controllerruntime", "debug", "indexer", "informers", "persist", "prometheus", "queue", "reflector", "workqueue"} {
		golden := filepath.Join("testdata", "api", strings.Replace(dir, ".", "warmwatch", 1)+".txt")
		got := exported(t, dir)
		if *updateAPI {
			if err := os.WriteFile(golden, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s exports something else (-golden +got):\n%s", dir, diff)
		}
	}
}

// exported returns what the package in a directory exports, sorted, without comments.
func exported(t *testing.T, dir string) []byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files in %s: %v", len(files), dir, err)
	}
	var all []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if !ast.FileExports(file) {
			continue
		}
		for _, decl := range file.Decls {
			if f, isFunc := decl.(*ast.FuncDecl); isFunc {
				if f.Body = nil; f.Recv != nil && !ofExported(f.Recv.List[0].Type) {
					continue
				}
			} else if decl.(*ast.GenDecl).Tok == token.IMPORT {
				continue
			}
			var b bytes.Buffer
			if err := printer.Fprint(&b, set, decl); err != nil {
				t.Fatal(err)
			}
			all = append(all, strings.ReplaceAll(b.String(), "\n\n", "\n")) // Where a comment was.
		}
	}
	slices.Sort(all)
	return []byte(strings.Join(all, "\n\n") + "\n")
}

// ofExported reports whether a receiver is of an exported type.
func ofExported(receiver ast.Expr) bool {
	switch x := receiver.(type) {
	case *ast.StarExpr:
		return ofExported(x.X)
	case *ast.IndexExpr: // Of a generic type.
		return ofExported(x.X)
	case *ast.Ident:
		return x.IsExported()
	}
	return false
}

// constants returns the constants of a file, with what stands behind their equals signs.
func constants(t *testing.T, name string) map[string]string {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, isValue := n.(*ast.ValueSpec); isValue && len(spec.Values) == 1 {
			var b bytes.Buffer
			if err := printer.Fprint(&b, set, spec.Values[0]); err != nil {
				t.Error(err)
			}
			all[spec.Names[0].Name] = b.String()
		}
		return true
	})
	return all
}

// TestCodesAndCausesAreSpelledAsTheirConstants, and all causes are exported.
func TestCodesAndCausesAreSpelledAsTheirConstants(t *testing.T) {
	here, causes := constants(t, "problem.go"), constants(t, "checkpoint/cause.go")
	codes := constants(t, "persist/db.go")
	for name, value := range here {
		switch from, isCode := strings.CutPrefix(name, "Code"); {
		case strings.HasPrefix(name, "Cause"):
			if value != "checkpoint."+name || causes[name] == "" {
				t.Errorf("%s = %s", name, value)
			}
		case isCode && strings.HasPrefix(value, "Code("):
			if value != "Code(persist."+name+")" || codes[name] != strconv.Quote(from) {
				t.Errorf("%s = %s, %s", name, value, codes[name])
			}
		case isCode && value != strconv.Quote(from):
			t.Errorf("%s = %s", name, value)
		}
	}
	for name, value := range causes {
		if value != strconv.Quote(strings.TrimPrefix(name, "Cause")) || here[name] == "" {
			t.Errorf("%s = %s, exported as %q", name, value, here[name])
		}
	}
	if len(causes) == 0 || len(codes) == 0 {
		t.Error("none found")
	}
}
