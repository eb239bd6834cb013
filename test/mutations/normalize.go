package mutations

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"time"
)

// tokenVolume matches the random names of token volumes.
var tokenVolume = regexp.MustCompile(`^kube-api-access-[a-z0-9]{5}$`)

// normalize removes from a stored object what servers generate. What the edits set is kept.
func normalize(k *kind, object, sent map[string]any, edits []edit) {
	metadata, _ := object["metadata"].(map[string]any)
	uid := stringField(metadata, "uid")
	for _, name := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink"} {
		delete(metadata, name)
	}
	sentMetadata, _ := sent["metadata"].(map[string]any)
	if stringField(sentMetadata, "name") == "" {
		delete(metadata, "name")
	}
	spec, _ := object["spec"].(map[string]any)
	switch k.Kind {
	case "Service":
		normalizeService(spec, edits)
	case "CertificateSigningRequest": // the requesting user
		for _, name := range []string{"username", "uid", "groups", "extra"} {
			delete(spec, name)
		}
	}
	normalizeValue(object, uid)
}

// normalizeService replaces allocated addresses and ports.
func normalizeService(spec map[string]any, edits []edit) {
	allocated := func(value any) bool {
		text, err := json.Marshal(value)
		return err == nil && value != nil && value != "None" && value != "" &&
			!slices.ContainsFunc(edits, func(e edit) bool { return bytes.Contains(e.Value, text) })
	}
	for _, name := range []string{"clusterIP", "healthCheckNodePort"} {
		if allocated(spec[name]) {
			spec[name] = "allocated"
		}
	}
	addresses, _ := spec["clusterIPs"].([]any)
	for i := range addresses {
		if allocated(addresses[i]) {
			addresses[i] = "allocated"
		}
	}
	ports, _ := spec["ports"].([]any)
	for _, p := range ports {
		if p, ok := p.(map[string]any); ok && allocated(p["nodePort"]) {
			p["nodePort"] = "allocated"
		}
	}
}

// normalizeValue replaces the current time, the object's UID and random names in a value, and returns it.
func normalizeValue(v any, uid string) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			v[name] = normalizeValue(value, uid)
		}
	case []any:
		for i, value := range v {
			v[i] = normalizeValue(value, uid)
		}
	case string:
		if at, err := time.Parse(time.RFC3339Nano, v); err == nil && time.Since(at).Abs() < time.Hour {
			return "now"
		}
		if uid != "" && v == uid {
			return "uid"
		}
		if tokenVolume.MatchString(v) {
			return "kube-api-access"
		}
	}
	return v
}

// change is a difference between two JSON values.
type change struct {
	path      []any
	was, now  any
	has, have bool // whether each side has the field
}

// changes returns the differences between two JSON values.
func changes(path []any, was, now any) (out []change) {
	if a, ok := was.(map[string]any); ok {
		if b, ok := now.(map[string]any); ok {
			names := maps.Clone(a)
			maps.Copy(names, b)
			for _, name := range slices.Sorted(maps.Keys(names)) {
				at := append(slices.Clone(path), name)
				x, has := a[name]
				y, have := b[name]
				if !has || !have {
					out = append(out, change{at, x, y, has, have})
					continue
				}
				out = append(out, changes(at, x, y)...)
			}
			return out
		}
	}
	if a, ok := was.([]any); ok {
		if b, ok := now.([]any); ok && len(a) == len(b) {
			for i := range a {
				out = append(out, changes(append(slices.Clone(path), i), a[i], b[i])...)
			}
			return out
		}
	}
	if !reflect.DeepEqual(was, now) {
		return []change{{path, was, now, true, true}}
	}
	return nil
}
