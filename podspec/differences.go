package podspec

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
)

// Differences returns the paths of the fields that differ between two values of one type, such as
// "spec.containers[0].command". Lists of different lengths differ as a whole. Values are not
// included, because they may be secret.
func Differences(root string, a, b any) []string {
	var out []string
	walk(root, reflect.ValueOf(a), reflect.ValueOf(b), &out)
	return out
}

func walk(at string, a, b reflect.Value, out *[]string) {
	if equality.Semantic.DeepEqual(a.Interface(), b.Interface()) {
		return
	}
	switch a.Kind() {
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			break
		}
		walk(at, a.Elem(), b.Elem(), out)
		return
	case reflect.Struct:
		if _, whole := reflect.TypeAssert[json.Marshaler](a); whole {
			break // a time or a quantity is one value
		}
		before := len(*out)
		for i := range a.NumField() {
			if f := a.Type().Field(i); f.IsExported() {
				walk(child(at, f), a.Field(i), b.Field(i), out)
			}
		}
		if len(*out) > before {
			return
		}
	case reflect.Slice:
		if a.Len() != b.Len() || a.Type().Elem().Kind() != reflect.Struct {
			break
		}
		for i := range a.Len() {
			walk(fmt.Sprintf("%s[%d]", at, i), a.Index(i), b.Index(i), out)
		}
		return
	case reflect.Map:
		if a.Type().Key().Kind() == reflect.String {
			walkMap(at, a, b, out)
			return
		}
	}
	*out = append(*out, at)
}

func walkMap(at string, a, b reflect.Value, out *[]string) {
	keys := map[string]reflect.Value{}
	for _, m := range []reflect.Value{a, b} {
		for _, k := range m.MapKeys() {
			keys[k.String()] = k
		}
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		x, y := a.MapIndex(keys[name]), b.MapIndex(keys[name])
		if !x.IsValid() || !y.IsValid() || !equality.Semantic.DeepEqual(x.Interface(), y.Interface()) {
			*out = append(*out, at+"["+name+"]")
		}
	}
}

// child returns the path of a field. Inlined fields have no path of their own.
func child(at string, f reflect.StructField) string {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	if strings.Contains(options, "inline") || name == "" && f.Anonymous {
		return at
	}
	if at == "" {
		return name
	}
	return at + "." + name
}
