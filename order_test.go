package warmwatch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// files of this package, in the order in which they are read: each uses only what stands in itself and above.
var files = []string{
	"options.go", "problem.go", "status.go", "identity.go", "cluster.go", "informer.go",
	"relist.go", "reconciler.go", "open.go", "run.go", "handlers.go", "cache.go", "metrics.go",
}

// TestFilesUseOnlyWhatStandsAboveThem in the list of files.
func TestFilesUseOnlyWhatStandsAboveThem(t *testing.T) {
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for line := range bytes.Lines(out) {
		pkg, export, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		exports[pkg] = export
	}
	fset := token.NewFileSet()
	var parsed []*ast.File
	there, _ := filepath.Glob("*.go")
	for _, name := range slices.DeleteFunc(there, func(name string) bool { return strings.HasSuffix(name, "_test.go") }) {
		if !slices.Contains(files, name) {
			t.Errorf("%s is not in the list", name)
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, file)
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	pkg, err := conf.Check("warmwatch", fset, parsed, &info)
	if err != nil {
		t.Fatal(err)
	}
	up := map[string]bool{}
	for id, obj := range info.Uses {
		if obj.Pkg() != pkg || !obj.Pos().IsValid() {
			continue
		}
		user, used := fset.Position(id.Pos()).Filename, fset.Position(obj.Pos()).Filename
		if slices.Index(files, user) < slices.Index(files, used) {
			up[fmt.Sprintf("%s uses %s of %s", fset.Position(id.Pos()), obj.Name(), used)] = true
		}
	}
	for use := range up {
		t.Error(use)
	}
}
