package mutations

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// enums maps a type and field, as io.k8s.api.core.v1.Container.imagePullPolicy, to its values.
type enums map[string][]string

// generator creates the mutations of one base. The same seed and enums create the same mutations.
type generator struct {
	*rand.Rand
	enums enums
}

// mutate returns a mutation of an object, which is nil if the object has nothing that the verb can change.
func (g *generator) mutate(b *base, verb string, object map[string]any) *mutation {
	m := &mutation{Base: b.id, Verb: verb}
	count := 1
	if g.chance(20) {
		count = 2
	}
	changed := object
	for range count {
		e := g.root(b.kind, verb, changed)
		next, err := apply(changed, []edit{e})
		if err != nil {
			continue // the second edit is below what the first one has replaced
		}
		changed = next
		m.Edits = append(m.Edits, e)
	}
	if len(m.Edits) == 0 {
		return nil
	}
	return m
}

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

// generated are fields of metadata that are not mutated: what the server sets, and preconditions.
var generated = []string{"namespace", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp",
	"deletionTimestamp", "deletionGracePeriodSeconds", "managedFields"}

// root mutates one of the top fields.
func (g *generator) root(k *kind, verb string, object map[string]any) edit {
	fields := jsonFields(k.Type)
	var candidates []jsonField
	for _, f := range fields {
		switch f.name {
		case "apiVersion", "kind":
		case "metadata":
			candidates = append(candidates, f)
		case "status":
			if verb == status {
				candidates = append(candidates, f, f, f, f, f, f, f, f)
			}
		default:
			if verb != status {
				candidates = append(candidates, f, f, f)
			} else if g.chance(10) {
				candidates = append(candidates, f)
			}
		}
	}
	f := candidates[g.IntN(len(candidates))]
	value, present := object[f.name]
	path := []any{f.name}
	if f.name == "metadata" {
		m, _ := value.(map[string]any)
		return g.metadata(verb, m)
	}
	if !present {
		return setField(path, g.fill(k.Type, f, 0))
	}
	return g.descend(k.Type, f, value, path)
}

// metadata mutates one of the fields of the metadata that clients set.
func (g *generator) metadata(verb string, object map[string]any) edit {
	var candidates []jsonField
	t := reflect.TypeFor[metav1.ObjectMeta]()
	for _, f := range jsonFields(t) {
		if !slices.Contains(generated, f.name) && (verb == create || f.name != "name" && f.name != "generateName") {
			candidates = append(candidates, f)
		}
	}
	f := candidates[g.IntN(len(candidates))]
	path := []any{"metadata", f.name}
	if value, ok := object[f.name]; ok {
		return g.descend(t, f, value, path)
	}
	return setField(path, g.fill(t, f, 0))
}

func setField(path []any, value any) edit {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encode %v: %v", value, err)) // it consists of JSON values
	}
	return edit{Path: slices.Clone(path), Value: text}
}

// descend mutates a field that is set, or something below it.
func (g *generator) descend(owner reflect.Type, f jsonField, value any, path []any) edit {
	t := deref(f.typ)
	switch n := g.IntN(100); {
	case n < 7:
		return edit{Path: slices.Clone(path), Remove: true}
	case n < 9:
		return setField(path, nil)
	case n < 10:
		return setField(path, g.wrongType(t))
	case n < 16 || isLeaf(t):
		return setField(path, g.fill(owner, f, 0))
	}
	// A former edit may have set a value of another type.
	object, isObject := value.(map[string]any)
	list, isList := value.([]any)
	switch {
	case isObject && t.Kind() == reflect.Map:
		return g.inMap(owner, f, t, object, path)
	case isObject && t.Kind() == reflect.Struct:
		return g.inStruct(t, object, path)
	case isList && t.Kind() == reflect.Slice:
		return g.inList(owner, f, t, list, path)
	}
	return setField(path, g.fill(owner, f, 0))
}

func (g *generator) inStruct(t reflect.Type, object map[string]any, path []any) edit {
	if g.chance(2) {
		return setField(append(path, "unknownField"), "a")
	}
	var present, absent []jsonField
	for _, f := range jsonFields(t) {
		if _, ok := object[f.name]; ok {
			present = append(present, f)
		} else {
			absent = append(absent, f)
		}
	}
	if len(absent) == 0 || len(present) > 0 && g.chance(65) {
		if len(present) == 0 {
			return setField(append(path, "unknownField"), "a")
		}
		f := present[g.IntN(len(present))]
		return g.descend(t, f, object[f.name], append(path, f.name))
	}
	f := absent[g.IntN(len(absent))]
	return setField(append(path, f.name), g.fill(t, f, 0))
}

func (g *generator) inMap(owner reflect.Type, f jsonField, t reflect.Type, object map[string]any, path []any) edit {
	element := jsonField{f.name, t.Elem(), true}
	if len(object) > 0 && g.chance(50) {
		names := slices.Sorted(maps.Keys(object))
		name := names[g.IntN(len(names))]
		return g.descend(owner, element, object[name], append(path, name))
	}
	return setField(append(path, pick(g, keys)), g.fill(owner, element, 1))
}

func (g *generator) inList(owner reflect.Type, f jsonField, t reflect.Type, list []any, path []any) edit {
	element := jsonField{f.name, t.Elem(), true}
	switch n := g.IntN(100); {
	case len(list) == 0 || n < 10:
		return setField(append(path, len(list)), g.fill(owner, element, 1))
	case n < 20:
		return setField(append(path, len(list)), list[g.IntN(len(list))]) // a duplicate
	case n < 22:
		return setField(path, []any{})
	case n < 24: // many
		var many []any
		for range []int{20, 70, 130}[g.IntN(3)] {
			many = append(many, list[0])
		}
		return setField(path, many)
	}
	i := g.IntN(len(list))
	return g.descend(owner, element, list[i], append(path, i))
}

// maxDepth limits the depth of new values.
const maxDepth = 4

// fill returns a value for a field: often a valid one.
func (g *generator) fill(owner reflect.Type, f jsonField, depth int) any {
	t := deref(f.typ)
	if isLeaf(t) {
		return g.leaf(owner, f, t)
	}
	switch t.Kind() {
	case reflect.Struct:
		return g.fillStruct(t, depth)
	case reflect.Map:
		out := map[string]any{}
		for range g.IntN(3) {
			out[pick(g, keys)] = g.fill(owner, jsonField{f.name, t.Elem(), true}, depth+1)
		}
		return out
	case reflect.Slice:
		out := []any{}
		for range 1 + g.IntN(2) {
			out = append(out, g.fill(owner, jsonField{f.name, t.Elem(), true}, depth+1))
		}
		return out
	}
	return nil
}

func (g *generator) fillStruct(t reflect.Type, depth int) any {
	out := map[string]any{}
	fields := jsonFields(t)
	union := isUnion(fields)
	only := g.IntN(max(1, len(fields)))
	for i, f := range fields {
		likelihood := 85
		switch {
		case union && i == only:
			likelihood = 95
		case union:
			likelihood = 3
		case f.optional && depth >= maxDepth:
			likelihood = 0
		case f.optional:
			likelihood = min(40, 200/len(fields))
		}
		if g.chance(likelihood) {
			out[f.name] = g.fill(t, f, depth+1)
		}
	}
	return out
}

// isUnion reports whether at most one of the fields is usually set, such as in a source of a volume.
func isUnion(fields []jsonField) bool {
	if len(fields) < 3 {
		return false
	}
	pointers := 0
	for _, f := range fields {
		if f.optional && f.typ.Kind() == reflect.Pointer && deref(f.typ).Kind() == reflect.Struct {
			pointers++
		}
	}
	return pointers >= len(fields)-1
}

// leaf returns a value for a field without fields.
func (g *generator) leaf(owner reflect.Type, f jsonField, t reflect.Type) any {
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		return pick(g, quantities)
	case reflect.TypeFor[intstr.IntOrString]():
		return json.RawMessage(pick(g, numbersOrPercents))
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return pick(g, times)
	case reflect.TypeFor[metav1.Duration]():
		return "5s"
	case reflect.TypeFor[runtime.RawExtension]():
		return json.RawMessage(pick(g, documents))
	}
	switch t.Kind() {
	case reflect.String:
		return g.text(owner, f)
	case reflect.Bool:
		return g.chance(50)
	case reflect.Slice: // bytes
		return pick(g, binaries)
	}
	return json.RawMessage(pick(g, numbers))
}

// text returns a string: mostly one for the field.
func (g *generator) text(owner reflect.Type, f jsonField) string {
	if values := g.enums[modelName(owner)+"."+f.name]; len(values) > 0 && g.chance(75) {
		return pick(g, values)
	}
	if values := words()[f.name]; len(values) > 0 && g.chance(75) {
		return pick(g, values)
	}
	return pick(g, anywhere)
}

// wrongType returns a value of a wrong type.
func (g *generator) wrongType(t reflect.Type) any {
	switch t.Kind() {
	case reflect.String, reflect.Bool:
		return 1
	case reflect.Struct, reflect.Map:
		return []any{"a"}
	}
	return map[string]any{"a": "b"}
}

func pick[T any](g *generator, list []T) T { return list[g.IntN(len(list))] }

// jsonField is a field in the JSON form of a type.
type jsonField struct {
	name     string
	typ      reflect.Type
	optional bool
}

// jsonFields returns the fields of a type, those of embedded types included.
func jsonFields(t reflect.Type) (out []jsonField) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && f.Anonymous:
			out = append(out, jsonFields(deref(f.Type))...)
		case name != "":
			out = append(out, jsonField{name, f.Type,
				strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")})
		}
	}
	return out
}

func deref(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// isLeaf reports whether the JSON form of a type has no fields or elements that are mutated.
func isLeaf(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[metav1.Time](),
		reflect.TypeFor[metav1.MicroTime](), reflect.TypeFor[metav1.Duration](),
		reflect.TypeFor[runtime.RawExtension]():
		return true
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return false
	case reflect.Slice:
		return t.Elem().Kind() == reflect.Uint8
	}
	return true
}

// modelName returns the name of a type in OpenAPI documents.
func modelName(t reflect.Type) string {
	path, isK8s := strings.CutPrefix(t.PkgPath(), "k8s.io/")
	if !isK8s {
		return ""
	}
	return "io.k8s." + strings.ReplaceAll(path, "/", ".") + "." + t.Name()
}
