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

// unread maps fields of nodeconfig.Config that no package reads yet to the row of the field table
// that documents this.
var unread = map[string]string{
	"Eviction.LocalStorageIsolation": "localStorageCapacityIsolation",
}

const configPackage = "internal/nodeconfig"

// TestEveryConfigFieldIsRead checks the field table of the configuration: a setting that is resolved
// but read by no other package has no effect.
func TestEveryConfigFieldIsRead(t *testing.T) {
	all := sources(t)
	known := known{}
	known["berth/"+configPackage] = checkPackage(all, configPackage, known, nil)
	fields := map[*types.Var]string{}
	collectFields(known["berth/"+configPackage].Scope().Lookup("Config").Type(), fields)
	if len(fields) < 80 {
		t.Fatalf("found only %d fields", len(fields))
	}
	read := map[string]bool{}
	for _, pkg := range readers(all) {
		info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
		checkPackage(all, pkg, known, info)
		for _, s := range info.Selections {
			if v, ok := s.Obj().(*types.Var); ok && fields[v] != "" {
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
			t.Errorf("%s is read: remove it from the list of unread fields", name)
		case excused && class[row] != nodeconfig.Ignored:
			t.Errorf("%s is not read, but the class of %s is %s", name, row, class[row])
		case !excused && !read[name]:
			t.Errorf("%s is resolved but not read: the setting has no effect", name)
		}
	}
	for name := range unread {
		if !slices.Contains(slices.Collect(maps.Values(fields)), name) {
			t.Errorf("Config has no field %s", name)
		}
	}
}

// readers lists the packages that import nodeconfig, except the test packages.
func readers(all []source) (out []string) {
	for _, s := range all {
		for _, im := range s.file.Imports {
			if im.Path.Value == `"berth/`+configPackage+`"` && path.Dir(s.pkg) != "test" &&
				!slices.Contains(out, s.pkg) {
				out = append(out, s.pkg)
			}
		}
	}
	return out
}

// collectFields adds the fields of a nodeconfig type and of the types nested in it to into, named by
// section and field, for example Pods.Max.
func collectFields(t types.Type, into map[*types.Var]string) {
	switch u := t.(type) {
	case *types.Pointer:
		collectFields(u.Elem(), into)
	case *types.Slice:
		collectFields(u.Elem(), into)
	case *types.Named:
		body, ok := u.Underlying().(*types.Struct)
		if !ok {
			return
		}
		for v := range body.Fields() {
			if _, ok := into[v]; !ok && !v.Embedded() {
				into[v] = u.Obj().Name() + "." + v.Name()
			}
			collectFields(v.Type(), into)
		}
	}
}

// known maps import paths to checked packages. All other packages are imported as empty ones. What
// comes from them has no type, which does not affect the types of nodeconfig.
type known map[string]*types.Package

func (k known) Import(name string) (*types.Package, error) {
	if p := k[name]; p != nil {
		return p, nil
	}
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}

// checkPackage type-checks a package as far as the known imports allow.
func checkPackage(all []source, pkg string, k known, info *types.Info) *types.Package {
	conf := types.Config{Importer: k, Error: func(error) {}}
	var files []*ast.File
	fset := all[0].fset
	for _, s := range all {
		if s.pkg == pkg {
			files = append(files, s.file)
		}
	}
	p, _ := conf.Check("berth/"+pkg, fset, files, info) // errors are expected: most imports are empty
	return p
}
