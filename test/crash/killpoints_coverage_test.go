package crash

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
)

// Tests kill the agent before and after each kind of action in package plan. A kind must be listed in
// boundaryKinds or lifecycleStages, or in exemptKinds with the reason.
var (
	boundaryKinds = []string{ // killed by TestKillAtEveryActionBoundary, which checks this
		"CreateDirs", "EnsureCgroup", "MountVolume", "RunSandbox", "StartContainer",
		"StopContainer", "StopSandbox", "RemoveContainer", "RemoveSandbox", "UnmountVolume", "RemoveCgroup",
		"RemoveDirs",
	}
	exemptKinds = map[string]string{}
)

// TestEveryActionHasKillPoint: tests kill the agent at every kind of action in package plan, including those
// that are added later.
func TestEveryActionHasKillPoint(t *testing.T) {
	t.Parallel()
	covered := slices.Concat(boundaryKinds, slices.Collect(maps.Keys(exemptKinds)))
	for _, s := range lifecycleStages {
		covered = append(covered, s.kind)
	}
	kinds := actionKinds(t)
	if len(kinds) < 18 {
		t.Fatalf("got action kinds %v, want at least 18", kinds)
	}
	for _, kind := range kinds {
		if !slices.Contains(covered, kind) {
			t.Errorf("plan.%s: no test kills the agent at this action, and exemptKinds gives no reason", kind)
		}
	}
	for _, kind := range covered {
		if !slices.Contains(kinds, kind) {
			t.Errorf("plan.%s is not an action", kind)
		}
	}
	for kind, why := range exemptKinds {
		if len(why) < 20 {
			t.Errorf("plan.%s: reason %q is too short", kind, why)
		}
	}
}

// actionKinds returns the names of the action types in package plan: the types with a method Key that
// returns an ActionKey.
func actionKinds(t *testing.T) (kinds []string) {
	t.Helper()
	noTests := func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }
	//nolint:staticcheck // the package has no build constraints
	packages, err := parser.ParseDir(token.NewFileSet(), "../../agent/plan", noTests, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range packages["plan"].Files {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || f.Name.Name != "Key" || f.Type.Results == nil || len(f.Type.Results.List) != 1 {
				continue
			}
			result, _ := f.Type.Results.List[0].Type.(*ast.Ident)
			receiver := f.Recv.List[0].Type
			if star, ok := receiver.(*ast.StarExpr); ok {
				receiver = star.X
			}
			if name, ok := receiver.(*ast.Ident); ok && result != nil && result.Name == "ActionKey" {
				kinds = append(kinds, name.Name)
			}
		}
	}
	slices.Sort(kinds)
	return kinds
}
