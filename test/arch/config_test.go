package arch

import (
	"go/ast"
	"go/types"
	"maps"
	"path"
	"slices"
	"testing"

	"berth/internal/nodeconfig"
)

// unread are the fields of nodeconfig.Config that nobody reads yet, each with
// the row of the table that says so.
var unread = map[string]string{
	"Eviction.LocalStorageIsolation": "localStorageCapacityIsolation",
}

// TestEverySettingIsRead holds the table of the configuration to the truth: what
// is resolved and read by no other package cannot be honoured.
func TestEverySettingIsRead(t *testing.T) {
	all := sources(t)
	known := known{}
	known["berth/internal/nodeconfig"] = checked(all, "internal/nodeconfig", known, nil)
	fields := map[*types.Var]string{}
	settings(known["berth/internal/nodeconfig"].Scope().Lookup("Config").Type(), fields)
	if len(fields) < 80 {
		t.Fatalf("only %d settings are found", len(fields))
	}
	read := map[string]bool{}
	for _, pkg := range readers(all) {
		info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
		checked(all, pkg, known, info)
		for _, s := range info.Selections {
			if v, is := s.Obj().(*types.Var); is && fields[v] != "" {
				read[fields[v]] = true
			}
		}
	}
	class := map[string]nodeconfig.Class{}
	for _, f := range nodeconfig.Fields() {
		class[f.Path] = f.Class
	}
	for _, name := range slices.Sorted(maps.Values(fields)) {
		row, excused := unread[name]
		switch {
		case excused && read[name]:
			t.Errorf("%s is read: take it from the list of those that are not", name)
		case excused && class[row] != nodeconfig.Ignored:
			t.Errorf("%s is read by nobody, and %s is %s", name, row, class[row])
		case !excused && !read[name]:
			t.Errorf("%s is resolved and read by nobody: what it comes from is not honoured", name)
		}
	}
	for name := range unread {
		if !slices.Contains(slices.Collect(maps.Values(fields)), name) {
			t.Errorf("there is no %s", name)
		}
	}
}

// readers are the packages that import nodeconfig, less itself and tests' own.
func readers(all []source) (out []string) {
	for _, s := range all {
		for _, im := range s.file.Imports {
			if im.Path.Value == `"berth/internal/nodeconfig"` && path.Dir(s.pkg) != "test" && !slices.Contains(out, s.pkg) {
				out = append(out, s.pkg)
			}
		}
	}
	return out
}

// settings collects the fields of a type of nodeconfig and of those in it, which
// have values of their own: Pods.Max.
func settings(t types.Type, into map[*types.Var]string) {
	switch u := t.(type) {
	case *types.Pointer:
		settings(u.Elem(), into)
	case *types.Slice:
		settings(u.Elem(), into)
	case *types.Named:
		body, is := u.Underlying().(*types.Struct)
		if !is {
			return
		}
		for v := range body.Fields() {
			if _, seen := into[v]; !seen && !v.Embedded() {
				into[v] = u.Obj().Name() + "." + v.Name()
			}
			settings(v.Type(), into)
		}
	}
}

// known are packages by path. Others are imported as empty ones: what comes from
// them has no type then, and nothing of nodeconfig is lost by that.
type known map[string]*types.Package

func (k known) Import(name string) (*types.Package, error) {
	if p := k[name]; p != nil {
		return p, nil
	}
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}

// checked finds the types of a package as far as they can be told.
func checked(all []source, pkg string, k known, info *types.Info) *types.Package {
	conf := types.Config{Importer: k, Error: func(error) {}}
	var files []*ast.File
	fset := all[0].fset
	for _, s := range all {
		if s.pkg == pkg {
			files = append(files, s.file)
		}
	}
	p, _ := conf.Check("berth/"+pkg, fset, files, info) // what is missing was not imported
	return p
}
