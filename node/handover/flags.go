package handover

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Flag is one flag of the kubelet's command line.
type Flag struct {
	Name  string // without dashes
	Value string // "true" for a flag without value
}

// ParseFlags splits the arguments of the kubelet, without the program, into flags. Arguments that
// are not flags are returned as rest.
func ParseFlags(args []string) (flags []Flag, rest []string) {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		name, isFlag := strings.CutPrefix(arg, "-")
		if !isFlag || name == "" {
			rest = append(rest, arg)
			continue
		}
		name = strings.TrimPrefix(name, "-")
		name, value, has := strings.Cut(name, "=")
		name = strings.ReplaceAll(name, "_", "-") // the kubelet accepts both
		switch {
		case has:
		case flagTable()[name].kind == boolean || len(args) == 0:
			value = "true"
		default:
			value, args = args[0], args[1:]
		}
		flags = append(flags, Flag{name, value})
	}
	return flags, rest
}

// kind is how the value of a flag is written.
type kind int

const (
	text       kind = iota // also a duration, an address or a quantity
	boolean                // the value can be omitted
	number                 // an integer
	list                   // separated by commas
	pairs                  // key=value, separated by commas
	boolPairs              // key=true, separated by commas
	thresholds             // signal<value, separated by commas
	taints                 // key=value:Effect, separated by commas
)

// parse returns the value of a flag as the JSON value of its configuration field.
func (k kind) parse(value string) (any, error) {
	switch k {
	case boolean:
		return strconv.ParseBool(value)
	case number:
		n, err := strconv.ParseInt(value, 10, 64)
		return float64(n), err
	case list:
		var all []any
		for _, s := range splitList(value) {
			all = append(all, s)
		}
		return all, nil
	case pairs, boolPairs, thresholds:
		return k.parseMap(value)
	case taints:
		return parseTaints(value)
	default:
		return value, nil
	}
}

func (k kind) parseMap(value string) (any, error) {
	separator := "="
	if k == thresholds {
		separator = "<"
	}
	all := map[string]any{}
	for _, pair := range splitList(value) {
		key, v, ok := strings.Cut(pair, separator)
		if !ok {
			return nil, fmt.Errorf("%q must have the form key%svalue", pair, separator)
		}
		all[strings.TrimSpace(key)] = strings.TrimSpace(v)
		if k == boolPairs {
			b, err := strconv.ParseBool(strings.TrimSpace(v))
			if err != nil {
				return nil, fmt.Errorf("%q: %w", pair, err)
			}
			all[strings.TrimSpace(key)] = b
		}
	}
	return all, nil
}

func parseTaints(value string) (any, error) {
	var all []any
	for _, s := range splitList(value) {
		i := strings.LastIndexByte(s, ':')
		if i < 0 {
			return nil, fmt.Errorf("%q must have the form key=value:Effect", s)
		}
		key, v, _ := strings.Cut(s[:i], "=")
		taint := map[string]any{"key": key, "effect": s[i+1:]}
		if v != "" {
			taint["value"] = v
		}
		all = append(all, taint)
	}
	return all, nil
}

func splitList(value string) (out []string) {
	for s := range strings.SplitSeq(value, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// lookup returns the value of a field that is set.
func lookup(tree map[string]any, path string) (any, bool) {
	first, rest, nested := strings.Cut(path, ".")
	v, ok := tree[first]
	if !ok || v == nil {
		return nil, false
	}
	if !nested {
		return v, true
	}
	sub, ok := v.(map[string]any)
	if !ok {
		return nil, false
	}
	return lookup(sub, rest)
}

// set sets a field and creates the objects above it.
func set(tree map[string]any, path string, value any) {
	first, rest, nested := strings.Cut(path, ".")
	if !nested {
		tree[first] = value
		return
	}
	sub, ok := tree[first].(map[string]any)
	if !ok {
		sub = map[string]any{}
		tree[first] = sub
	}
	set(sub, rest, value)
}

// unset removes a field, and the objects above it that are empty then.
func unset(tree map[string]any, path string) {
	first, rest, nested := strings.Cut(path, ".")
	if !nested {
		delete(tree, first)
		return
	}
	if sub, ok := tree[first].(map[string]any); ok {
		unset(sub, rest)
		if len(sub) == 0 {
			delete(tree, first)
		}
	}
}

// shown returns a value for the plan.
func shown(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

func shownJSON(v any) string {
	b, _ := json.Marshal(v) // decoded from JSON
	return string(b)
}
