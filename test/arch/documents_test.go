package arch

import (
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sourcePath is a file or folder of the source in a document, such as `agent/plan/decide.go` or
// `probes/`.
var sourcePath = regexp.MustCompile("`((?:\\w+/)+(?:\\w+\\.go)?)`")

func TestPathsInArchitectureExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	paths := sourcePath.FindAllStringSubmatch(string(text), -1)
	if len(paths) < 30 {
		t.Fatalf("found only %d paths", len(paths))
	}
	for _, p := range paths {
		if _, err := os.Stat(filepath.Join(root, p[1])); err != nil {
			t.Errorf("ARCHITECTURE.md: %v", err)
		}
	}
}

// codeSpan is inline code in a document, and identifier an exported name of a package in it, such as
// plan.Decide, with a method or field if one follows.
var (
	codeSpan   = regexp.MustCompile("`[^`\n]+`")
	identifier = regexp.MustCompile(`\b([a-z]\w*)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
)

// TestIdentifiersInDocumentsExist covers the identifiers whose first part is a package of this
// repository.
func TestIdentifiersInDocumentsExist(t *testing.T) {
	t.Parallel()
	declared := declarations(t)
	found := 0
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, code := range codeSpan.FindAllString(string(text), -1) {
			for _, m := range identifier.FindAllStringSubmatch(code, -1) {
				names, ours := declared[m[1]]
				if !ours {
					continue
				}
				found++
				if !names[m[2]] || m[3] != "" && !names[m[2]+"."+m[3]] {
					t.Errorf("%s: %s does not exist", strings.TrimPrefix(file, root+"/"), m[0])
				}
			}
		}
	}
	if found < 5 {
		t.Errorf("found only %d identifiers", found)
	}
}

// documents returns the current documents. Reports keep the names of their time.
func documents(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	docs := filepath.Join(root, "docs")
	err = filepath.WalkDir(docs, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == filepath.Join(docs, "reports"):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".md"):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestPagesHaveAtMost400Lines(t *testing.T) {
	t.Parallel()
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); n > 400 {
			t.Errorf("%s: %d lines", strings.TrimPrefix(file, root+"/"), n)
		}
	}
}

// declarations returns the package-level names by the name of their package, with the methods and
// fields of types as Type.Member.
func declarations(t *testing.T) map[string]map[string]bool {
	t.Helper()
	out := map[string]map[string]bool{}
	for _, src := range sources(t) {
		pkg := src.file.Name.Name
		if pkg == "main" {
			continue
		}
		if out[pkg] == nil {
			out[pkg] = map[string]bool{}
		}
		for _, decl := range src.file.Decls {
			addNames(out[pkg], decl)
		}
	}
	return out
}

func addNames(names map[string]bool, decl ast.Decl) {
	if f, ok := decl.(*ast.FuncDecl); ok {
		name := f.Name.Name
		if f.Recv != nil {
			name = receiver(f.Recv.List[0].Type) + "." + name
		}
		names[name] = true
		return
	}
	for _, spec := range decl.(*ast.GenDecl).Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				names[name.Name] = true
			}
		case *ast.TypeSpec:
			names[spec.Name.Name] = true
			for _, member := range members(spec.Type) {
				names[spec.Name.Name+"."+member] = true
			}
		}
	}
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	if generic, ok := e.(*ast.IndexListExpr); ok {
		e = generic.X
	}
	return baseIdent(e).Name
}

// members returns the fields of a struct type or the methods of an interface type.
func members(e ast.Expr) (out []string) {
	var list *ast.FieldList
	switch e := e.(type) {
	case *ast.StructType:
		list = e.Fields
	case *ast.InterfaceType:
		list = e.Methods
	default:
		return nil
	}
	for _, f := range list.List {
		for _, name := range f.Names {
			out = append(out, name.Name)
		}
	}
	return out
}
