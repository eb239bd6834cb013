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

// Where the agent is killed before and after each kind of action that package
// plan has. A kind that is in neither table has to say in unkilled why not.
var (
	walked = []string{ // by TestKillAtEveryActionBoundary, which proves it
		"CreateDirs", "EnsureCgroup", "MountVolume", "RunSandbox", "StartContainer",
		"StopContainer", "StopSandbox", "RemoveContainer", "RemoveSandbox", "UnmountVolume", "RemoveCgroup", "RemoveDirs",
	}
	unkilled = map[string]string{}
)

// TestEveryActionHasKillPoint: a kind that is added to package plan is
// killed at, too.
func TestEveryActionHasKillPoint(t *testing.T) {
	t.Parallel()
	covered := slices.Concat(walked, slices.Collect(maps.Keys(unkilled)))
	for _, s := range lifecycleStages {
		covered = append(covered, s.kind)
	}
	kinds := actionKinds(t)
	if len(kinds) < 18 {
		t.Fatalf("package plan seems to have only these kinds of actions: %v", kinds)
	}
	for _, kind := range kinds {
		if !slices.Contains(covered, kind) {
			t.Errorf("plan.%s: nothing is killed before and after it, and unkilled does not say why", kind)
		}
	}
	for _, kind := range covered {
		if !slices.Contains(kinds, kind) {
			t.Errorf("%s is no kind of action of package plan", kind)
		}
	}
	for kind, why := range unkilled {
		if len(why) < 20 {
			t.Errorf("plan.%s: %q is no reason", kind, why)
		}
	}
}

// actionKinds are the types of package plan that are actions: those with a
// method Key that returns an ActionKey.
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
