package strictyaml

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	yaml "sigs.k8s.io/yaml/goyaml.v3"
)

// walk traverses a tree along a Go type. It reports what does not match and builds the JSON form.
type walk struct {
	left *budget
	errs Errors
	full bool // a limit was exceeded: report once

	fields map[reflect.Type]map[string]reflect.Type // cache by struct type
}

const maxErrors = 20

func (w *walk) complain(n *yaml.Node, path, format string, args ...any) {
	if len(w.errs) < maxErrors {
		w.errs = append(w.errs, &Error{Line: n.Line, Field: path, Message: fmt.Sprintf(format, args...)})
	}
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
	anyType         = reflect.TypeFor[any]()
	bytesType       = reflect.TypeFor[[]byte]()
)

// value returns the JSON form of n, which will be decoded into type t.
func (w *walk) value(n *yaml.Node, t reflect.Type, path string, depth int) any {
	n = resolve(n)
	if w.left.nodes--; w.left.nodes < 0 || depth > w.left.depth {
		if !w.full {
			w.full = true
			w.complain(n, path, "too large or too deeply nested once aliases are expanded")
		}
		return nil
	}
	if n.Kind == yaml.ScalarNode && tag(n) == "!!null" {
		return nil
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if p := reflect.PointerTo(t); p.Implements(jsonUnmarshaler) || p.Implements(textUnmarshaler) {
		return w.custom(n, t, path, depth)
	}
	switch t.Kind() {
	case reflect.Struct:
		return w.structure(n, t, path, depth)
	case reflect.Map:
		return w.mapping(n, t.Elem(), path, depth)
	case reflect.Slice, reflect.Array:
		if t == bytesType || t.Elem().Kind() == reflect.Uint8 {
			return w.base64(n, path)
		}
		return w.sequence(n, t.Elem(), path, depth)
	case reflect.Interface:
		return w.untyped(n, path, depth)
	}
	return w.scalar(n, t, path)
}

// untyped returns the JSON form of any value.
func (w *walk) untyped(n *yaml.Node, path string, depth int) any {
	switch n.Kind {
	case yaml.MappingNode:
		return w.mapping(n, anyType, path, depth)
	case yaml.SequenceNode:
		return w.sequence(n, anyType, path, depth)
	}
	v, _ := plain(n)
	return v
}

// custom lets a type with its own decoder validate its value.
func (w *walk) custom(n *yaml.Node, t reflect.Type, path string, depth int) any {
	before := len(w.errs)
	v := w.untyped(n, path, depth)
	if len(w.errs) > before {
		return nil
	}
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, reflect.New(t).Interface())
	}
	if err != nil {
		w.complain(n, path, "is not a valid %s", word(t))
		return nil
	}
	return json.RawMessage(b)
}

// word names a type for users.
func word(t reflect.Type) string {
	switch t.Name() {
	case "Quantity", "QuantityValue":
		return "quantity (such as 100m, 1Gi)"
	case "IntOrString":
		return "number or name"
	case "Duration", "TimeOrMetaDuration":
		return "duration (such as 30s, 5m, 1h30m)"
	case "Time", "MicroTime":
		return "time (such as 2006-01-02T15:04:05Z)"
	}
	return strings.ToLower(t.Name())
}

func (w *walk) structure(n *yaml.Node, t reflect.Type, path string, depth int) any {
	if n.Kind != yaml.MappingNode {
		w.complain(n, path, "must be an object, is %s", what(n))
		return nil
	}
	fields, ok := w.fields[t]
	if !ok {
		fields = fieldsOf(t)
		w.fields[t] = fields
	}
	out := map[string]any{}
	w.entries(n, path, func(key, value *yaml.Node) {
		sub := join(path, key.Value)
		ft, ok := fields[key.Value]
		if !ok {
			w.complain(key, sub, "unknown field%s", hint(key.Value, fields))
			return
		}
		if v := w.value(value, ft, sub, depth+1); v != nil {
			out[key.Value] = v
		}
	})
	return out
}

func (w *walk) mapping(n *yaml.Node, elem reflect.Type, path string, depth int) any {
	if n.Kind != yaml.MappingNode {
		w.complain(n, path, "must be an object, is %s", what(n))
		return nil
	}
	out := map[string]any{}
	w.entries(n, path, func(key, value *yaml.Node) {
		out[key.Value] = w.value(value, elem, keyPath(path, key.Value), depth+1)
	})
	return out
}

// entries calls f for each entry of a mapping, including merges (<<). Entries of the mapping itself
// take precedence. Duplicate keys are errors.
func (w *walk) entries(n *yaml.Node, path string, f func(key, value *yaml.Node)) {
	seen := map[string]int{}
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolve(n.Content[i]), n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			w.complain(key, path, "has a key that is not a string")
			continue
		}
		if tag(key) == "!!merge" {
			merges = append(merges, value)
			continue
		}
		if line, dup := seen[key.Value]; dup {
			w.complain(key, join(path, key.Value), "duplicate field, first on line %d", line)
			continue
		}
		seen[key.Value] = key.Line
		f(key, value)
	}
	for _, m := range merges {
		w.merge(m, path, seen, f, 0)
	}
}

func (w *walk) merge(m *yaml.Node, path string, seen map[string]int, f func(key, value *yaml.Node), depth int) {
	m = resolve(m)
	if w.left.nodes--; w.left.nodes < 0 || depth > w.left.depth {
		w.complain(m, path, "merges nested too deep")
		return
	}
	switch m.Kind {
	case yaml.SequenceNode:
		for _, c := range m.Content {
			w.merge(c, path, seen, f, depth+1)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(m.Content); i += 2 {
			key, value := resolve(m.Content[i]), m.Content[i+1]
			if key.Kind != yaml.ScalarNode {
				continue
			}
			if tag(key) == "!!merge" {
				w.merge(value, path, seen, f, depth+1)
			} else if _, own := seen[key.Value]; !own {
				seen[key.Value] = key.Line
				f(key, value)
			}
		}
	default:
		w.complain(m, path, "merges something that is not an object")
	}
}

func (w *walk) sequence(n *yaml.Node, elem reflect.Type, path string, depth int) any {
	if n.Kind != yaml.SequenceNode {
		w.complain(n, path, "must be a list, is %s", what(n))
		return nil
	}
	out := make([]any, 0, len(n.Content))
	for i, c := range n.Content {
		out = append(out, w.value(c, elem, path+"["+strconv.Itoa(i)+"]", depth+1))
	}
	return out
}

func (w *walk) base64(n *yaml.Node, path string) any {
	if n.Kind != yaml.ScalarNode {
		w.complain(n, path, "must be base64 text, is %s", what(n))
		return nil
	}
	text := strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == ' ' || r == '\t' {
			return -1
		}
		return r
	}, n.Value)
	if _, err := base64.StdEncoding.DecodeString(text); err != nil {
		w.complain(n, path, "must be base64 (stringData takes plain text)")
		return nil
	}
	return text
}

// scalar validates a value of a basic type.
func (w *walk) scalar(n *yaml.Node, t reflect.Type, path string) any {
	if n.Kind != yaml.ScalarNode {
		w.complain(n, path, "must be %s, is %s", basic(t), what(n))
		return nil
	}
	v, ok := plain(n)
	fits := false
	if ok {
		switch x := v.(type) {
		case string:
			fits = t.Kind() == reflect.String
		case bool:
			fits = t.Kind() == reflect.Bool
		case int64:
			fits = isFloat(t) || isInt(t) && !reflect.Zero(t).OverflowInt(x) ||
				isUint(t) && x >= 0 && !reflect.Zero(t).OverflowUint(uint64(x))
		case float64:
			if i := int64(x); (isInt(t) || isUint(t)) && float64(i) == x && math.Abs(x) < 1<<53 {
				v = i
				fits = isInt(t) && !reflect.Zero(t).OverflowInt(i) || isUint(t) && i >= 0 &&
					!reflect.Zero(t).OverflowUint(uint64(i))
			} else {
				fits = isFloat(t)
			}
		}
	}
	if !fits {
		quote := ""
		if t.Kind() == reflect.String {
			quote = ": put it in quotes"
		}
		w.complain(n, path, "must be %s, is %s%s", basic(t), what(n), quote)
		return nil
	}
	return v
}

func isInt(t reflect.Type) bool   { return t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64 }
func isUint(t reflect.Type) bool  { return t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uintptr }
func isFloat(t reflect.Type) bool { return t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64 }

func basic(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case isFloat(t):
		return "a number"
	case isUint(t):
		return fmt.Sprintf("a whole number from 0 with %d bits", t.Bits())
	}
	return fmt.Sprintf("a whole number with %d bits", t.Bits())
}

// what names the type of a value, never the value.
func what(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "an object"
	case yaml.SequenceNode:
		return "a list"
	}
	v, ok := plain(n)
	if !ok {
		return "something else"
	}
	switch v.(type) {
	case bool:
		return "a boolean"
	case int64, float64:
		return "a number"
	case nil:
		return "nothing"
	}
	return "text"
}

// tag returns the short tag, with the booleans of YAML 1.1, as in Kubernetes.
func tag(n *yaml.Node) string {
	t := n.ShortTag()
	if t == "!!str" && n.Style == 0 && n.Tag != "!" {
		switch n.Value {
		case "yes", "Yes", "YES", "on", "On", "ON", "no", "No", "NO", "off", "Off", "OFF":
			return "!!bool"
		}
	}
	return t
}

// plain returns a scalar as nil, string, bool, int64 or float64. It returns false for other types
// and overflows.
func plain(n *yaml.Node) (any, bool) {
	switch tag(n) {
	case "!!null":
		return nil, true
	case "!!bool":
		return slices.Contains([]string{"true", "yes", "on"}, strings.ToLower(n.Value)), true
	case "!!int":
		var i int64
		if n.Decode(&i) != nil {
			return n.Value, false
		}
		return i, true
	case "!!float":
		var f float64
		if n.Decode(&f) != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			return n.Value, false
		}
		return f, true
	case "!!str", "!!timestamp":
		return n.Value, true
	}
	return n.Value, false // such as !!binary
}

// fieldsOf returns the types of the fields of a struct by JSON name.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && f.Anonymous:
			ft := f.Type
			if ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			for k, v := range fieldsOf(ft) {
				if _, own := fields[k]; !own {
					fields[k] = v
				}
			}
		case !f.IsExported():
		case name == "":
			fields[f.Name] = f.Type
		default:
			fields[name] = f.Type
		}
	}
	return fields
}

// hint suggests a field that differs in case only.
func hint(name string, fields map[string]reflect.Type) string {
	for f := range fields {
		if strings.EqualFold(f, name) {
			return ", did you mean " + f + "?"
		}
	}
	return ""
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func keyPath(path, key string) string {
	if path == "" || strings.ContainsAny(key, ".[]/") {
		return path + "[" + key + "]"
	}
	return path + "." + key
}
