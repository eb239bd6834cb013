package podspec

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// leaf is one field of a PodSpec with a value, and a function that sets it in an empty pod.
type leaf struct {
	path  string // containers[].env[].valueFrom.fileKeyRef.key
	field string // its name in Go: Key
	set   func(*corev1.PodSpec)
}

// values are struct types that are a single value for users.
var values = map[reflect.Type]reflect.Value{
	reflect.TypeFor[resource.Quantity]():  reflect.ValueOf(resource.MustParse("1")),
	reflect.TypeFor[intstr.IntOrString](): reflect.ValueOf(intstr.FromInt32(1)),
	reflect.TypeFor[metav1.Time]():        reflect.ValueOf(metav1.Unix(1, 0)),
}

// leaves returns every field of a type. Set allocates pointers, slices and maps.
func leaves(
	t *testing.T,
	typ reflect.Type,
	path, field string,
	set func(*corev1.PodSpec, func(reflect.Value)),
) (out []leaf) {
	if v, is := values[typ]; is {
		return []leaf{{path, field, func(s *corev1.PodSpec) { set(s, func(at reflect.Value) { at.Set(v) }) }}}
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return leaves(t, typ.Elem(), path, field, func(s *corev1.PodSpec, then func(reflect.Value)) {
			set(s, func(at reflect.Value) {
				if at.IsNil() {
					at.Set(reflect.New(typ.Elem()))
				}
				then(at.Elem())
			})
		})
	case reflect.Slice:
		if typ.Elem().Kind() == reflect.Uint8 {
			break
		}
		return leaves(t, typ.Elem(), path+"[]", field, func(s *corev1.PodSpec, then func(reflect.Value)) {
			set(s, func(at reflect.Value) {
				at.Set(reflect.MakeSlice(typ, 1, 1))
				then(at.Index(0))
			})
		})
	case reflect.Map:
		return []leaf{{path, field, func(s *corev1.PodSpec) {
			set(s, func(at reflect.Value) {
				elem := reflect.New(typ.Elem()).Elem()
				if v, is := values[typ.Elem()]; is {
					elem.Set(v)
				}
				at.Set(reflect.MakeMap(typ))
				at.SetMapIndex(reflect.ValueOf("x").Convert(typ.Key()), elem)
			})
		}}}
	case reflect.Struct:
		for i := range typ.NumField() {
			f := typ.Field(i)
			below := path
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" { // else it is embedded: its fields are ours
				below = strings.TrimPrefix(path+"."+name, ".")
			}
			out = append(out, leaves(t, f.Type, below, f.Name, func(s *corev1.PodSpec, then func(reflect.Value)) {
				set(s, func(at reflect.Value) { then(at.Field(i)) })
			})...)
		}
		return out
	}
	return []leaf{{path, field, func(s *corev1.PodSpec) { set(s, func(at reflect.Value) { setLeaf(t, path, at) }) }}}
}

func setLeaf(t *testing.T, path string, at reflect.Value) {
	switch at.Kind() {
	case reflect.String:
		at.SetString("x")
	case reflect.Bool:
		at.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		at.SetInt(1)
	case reflect.Slice:
		at.SetBytes([]byte("x"))
	default:
		t.Fatalf("%s: no value for type %s", path, at.Type())
	}
}

func podLeaves(t *testing.T) []leaf {
	return leaves(
		t,
		reflect.TypeFor[corev1.PodSpec](),
		"",
		"",
		func(s *corev1.PodSpec, then func(reflect.Value)) { then(reflect.ValueOf(s).Elem()) },
	)
}

// fieldClasses reads testdata/fields.txt, which has the class of each field:
//
//	supported  works as documented by Kubernetes; the test that proves it follows: folder.TestName
//	inert      has no meaning for a node, as in Kubernetes; the reason follows after #
//	ignored    a warning reports that it has no effect
//	rejected   the pod is rejected
//
// A path that ends in .* stands for all fields below it. proofs are the tests by path.
func fieldClasses(t *testing.T) (classes, proofs map[string]string) {
	raw, err := os.ReadFile("testdata/fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	classes, proofs = map[string]string{}, map[string]string{}
	for line := range strings.Lines(string(raw)) {
		line, why, _ := strings.Cut(line, "#")
		words := strings.Fields(line)
		supported := len(words) == 3 && words[0] == "supported"
		switch {
		case len(words) == 0:
			continue
		case len(words) != 2 && !supported || classes[words[1]] != "",
			words[0] == "inert" && strings.TrimSpace(why) == "":
			t.Fatalf("testdata/fields.txt: %q", line)
		}
		classes[words[1]] = words[0]
		if supported {
			proofs[words[1]] = words[2]
		}
	}
	return classes, proofs
}

// TestEverySupportedFieldHasTest fails when a supported field has no test, the test does not exist, or its
// file does not mention the field.
func TestEverySupportedFieldHasTest(t *testing.T) {
	t.Parallel()
	classes, proofs := fieldClasses(t)
	fields := map[string]string{} // Go name by path
	for _, l := range podLeaves(t) {
		fields[l.path] = l.field
	}
	files := map[string]map[string]string{} // content of the file of a test, by folder and test
	for path, class := range classes {
		if class != "supported" {
			continue
		}
		folder, name, ok := strings.Cut(proofs[path], ".")
		if !ok {
			t.Errorf("%s: no test in testdata/fields.txt", path)
			continue
		}
		if files[folder] == nil {
			files[folder] = testFiles(t, folder)
		}
		text, exists := files[folder][name]
		if !exists {
			t.Errorf("%s: there is no test %s in %s", path, name, folder)
			continue
		}
		leaf := strings.TrimSuffix(path[strings.LastIndexByte(path, '.')+1:], "[]")
		mentions := regexp.MustCompile(`\b(` + leaf + "|" + fields[path] + `)\b`)
		if !mentions.MatchString(text) {
			t.Errorf("%s: the file of %s in %s does not mention the field", path, name, folder)
		}
	}
}

// testFiles returns the content of the file of each test in a folder of the repository.
func testFiles(t *testing.T, folder string) map[string]string {
	t.Helper()
	out := map[string]string{}
	names, err := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllSubmatch(text, -1) {
			out[string(m[1])] = string(text)
		}
	}
	return out
}

// TestEveryFieldIsClassified fails when k8s.io/api gets a field without a class, or when the class
// differs from UnsupportedFields.
func TestEveryFieldIsClassified(t *testing.T) {
	t.Parallel()
	table, _ := fieldClasses(t)
	used, read := map[string]bool{}, selectors(t)
	for _, l := range podLeaves(t) {
		pod := &corev1.Pod{}
		l.set(&pod.Spec)
		warnings, rejected := UnsupportedFields(pod)
		key := row(table, l.path)
		if key == "" { // containers of all kinds are alike
			key = row(table, strings.Replace(l.path, "initContainers[]", "containers[]", 1))
		}
		used[key] = true
		switch class := table[key]; {
		case class == "":
			t.Errorf("%s: not classified in testdata/fields.txt", l.path)
		case (class == "rejected") != (len(rejected) > 0),
			(class == "ignored") != (len(warnings) > 0 && len(rejected) == 0):
			t.Errorf(
				"%s: testdata/fields.txt has %s, but warnings %q and errors %q",
				l.path,
				class,
				warnings,
				rejected,
			)
		case class == "supported" && !read[l.field]:
			t.Errorf("%s: testdata/fields.txt has supported, but no code reads the field %s", l.path, l.field)
		}
	}
	for key := range table {
		if !used[key] {
			t.Errorf("testdata/fields.txt: there is no field %s", key)
		}
	}
}

// row is the line of the table for a field, or an empty string.
func row(table map[string]string, path string) string {
	if table[path] != "" {
		return path
	}
	for at := strings.LastIndexByte(path, '.'); at >= 0; at = strings.LastIndexByte(path[:at], '.') {
		if key := path[:at] + ".*"; table[key] != "" {
			return key
		}
	}
	return ""
}

// selectors are the names of all fields that the program reads, except for validation, naming and
// display.
func selectors(t *testing.T) map[string]bool {
	read := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"test", "testdata", "console", "docs", ".git"}, d.Name()):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go"),
			strings.HasPrefix(path, "../podspec/validate"), strings.HasPrefix(path, "../podspec/defaults"),
			path == "../podspec/unsupported.go":
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, is := n.(*ast.SelectorExpr); is {
				read[s.Sel.Name] = true
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return read
}
