package mutations

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Verbs of mutations.
const (
	create = "create"
	update = "update"
	status = "status" // an update of the status subresource
)

// edit changes one field. An index that equals the length of a list appends to it.
type edit struct {
	Path   []any           `json:"path"` // names of fields, keys and indexes
	Remove bool            `json:"remove,omitempty"`
	Value  json.RawMessage `json:"value,omitempty"`
}

// mutation is a request about a changed base.
type mutation struct {
	Base  string `json:"base"`
	Verb  string `json:"verb"`
	Edits []edit `json:"edits"`
}

func (m mutation) String() string {
	var out strings.Builder
	for _, e := range m.Edits {
		fmt.Fprintf(&out, " %s", pathText(e.Path))
		if e.Remove {
			out.WriteString(" removed")
		} else {
			fmt.Fprintf(&out, "=%s", shorten(string(e.Value)))
		}
	}
	return m.Verb + " " + m.Base + out.String()
}

func shorten(s string) string {
	const most = 120
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// pathText formats a path as field paths in errors.
func pathText(path []any) string {
	var out strings.Builder
	for i, p := range path {
		switch p := p.(type) {
		case string:
			if i > 0 {
				out.WriteByte('.')
			}
			out.WriteString(shorten(p))
		default:
			fmt.Fprintf(&out, "[%v]", p)
		}
	}
	return out.String()
}

// apply returns a changed copy of an object. It returns an error if a path does not exist.
func apply(object map[string]any, edits []edit) (map[string]any, error) {
	out := copyJSON(object).(map[string]any)
	for _, e := range edits {
		var value any
		if !e.Remove {
			d := json.NewDecoder(bytes.NewReader(e.Value))
			d.UseNumber()
			if err := d.Decode(&value); err != nil {
				return nil, err
			}
		}
		changed, err := set(out, e.Path, value, e.Remove)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pathText(e.Path), err)
		}
		var ok bool
		if out, ok = changed.(map[string]any); !ok {
			return nil, fmt.Errorf("%s: not an object", pathText(e.Path))
		}
	}
	return out, nil
}

// set sets or removes what is at a path below a value, and returns the changed value.
func set(at any, path []any, value any, remove bool) (any, error) {
	if len(path) == 0 {
		return value, nil
	}
	switch at := at.(type) {
	case map[string]any:
		name, ok := path[0].(string)
		if !ok {
			return nil, fmt.Errorf("index %v of an object", path[0])
		}
		if len(path) == 1 && remove {
			delete(at, name)
			return at, nil
		}
		child, exists := at[name]
		if !exists && len(path) > 1 {
			return nil, fmt.Errorf("no field %s", name)
		}
		changed, err := set(child, path[1:], value, remove)
		at[name] = changed
		return at, err
	case []any:
		i, ok := index(path[0])
		if !ok || i < 0 || i > len(at) || i == len(at) && (len(path) > 1 || remove) {
			return nil, fmt.Errorf("index %v of a list with %d elements", path[0], len(at))
		}
		if len(path) == 1 && remove {
			return slices.Delete(at, i, i+1), nil
		}
		if i == len(at) {
			return append(at, value), nil
		}
		changed, err := set(at[i], path[1:], value, remove)
		at[i] = changed
		return at, err
	}
	return nil, fmt.Errorf("nothing below %v", path[0])
}

// index returns a number of a path, which is a float after it was decoded.
func index(v any) (int, bool) {
	switch v := v.(type) {
	case int:
		return v, true
	case float64:
		return int(v), true
	case json.Number:
		n, err := v.Int64()
		return int(n), err == nil
	}
	return 0, false
}
