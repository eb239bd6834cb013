package arch

import (
	"fmt"
	"go/ast"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// maxWiringLines is the maximum number of lines of a function that connects packages.
const maxWiringLines = 25

// wiringExceptions lists the functions in wire_*.go that may have a loop or more lines, and why. The
// list may only shrink: logic belongs to the package of its subject.
var wiringExceptions = map[string]string{
	"cmd/berth handlers":              "one literal, the table of endpoints with one line for each",
	"control schedulerAndControllers": "adds one Controller for each name that package controllers lists",
}

// TestWiringHoldsNoLogic checks the functions in wire_*.go of the commands and of package control:
// they connect packages and contain no loop, no switch and few lines.
func TestWiringHoldsNoLogic(t *testing.T) {
	t.Parallel()
	needed, functions := map[string]bool{}, 0
	for _, s := range sources(t) {
		file := filepath.Base(s.path)
		if path.Dir(s.pkg) != "cmd" && s.pkg != "control" || !strings.HasPrefix(file, "wire_") {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			functions++
			problem := wiringProblem(s, f)
			name := s.pkg + " " + f.Name.Name
			if _, excused := wiringExceptions[name]; excused && problem != "" {
				needed[name] = true
			} else if problem != "" {
				t.Errorf("%s: %s %s: move the logic to the package of its subject", s.path, f.Name.Name, problem)
			}
		}
	}
	if functions < 100 {
		t.Errorf("found only %d functions", functions)
	}
	for name := range wiringExceptions {
		if !needed[name] {
			t.Errorf("remove %q from the exceptions: it is no longer needed", name)
		}
	}
}

// wiringProblem describes why a function is more than wiring; empty: it is not.
func wiringProblem(s source, f *ast.FuncDecl) (problem string) {
	lines := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
	if lines > maxWiringLines {
		problem = fmt.Sprintf("has %d lines, at most %d are allowed", lines, maxWiringLines)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			problem = "contains a loop"
		case *ast.SwitchStmt, *ast.TypeSwitchStmt:
			problem = "contains a switch"
		}
		return true
	})
	return problem
}
