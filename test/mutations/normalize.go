package mutations

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"time"
)

// tokenVolume matches the random names of token volumes.
var tokenVolume = regexp.MustCompile(`^kube-api-access-[a-z0-9]{5}$`)

// normalize removes from a stored object what servers generate.
func normalize(k *kind, object, sent map[string]any) {
	metadata, _ := object["metadata"].(map[string]any)
	for _, name := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink"} {
		delete(metadata, name)
	}
	sentMetadata, _ := sent["metadata"].(map[string]any)
	if stringField(sentMetadata, "name") == "" {
		delete(metadata, "name")
	}
	spec, _ := object["spec"].(map[string]any)
	sentSpec, _ := sent["spec"].(map[string]any)
	switch k.Kind {
	case "Service":
		normalizeService(spec, sentSpec)
	case "CertificateSigningRequest": // the requesting user
		for _, name := range []string{"username", "uid", "groups", "extra"} {
			delete(spec, name)
		}
	case "Job": // the UID of the Job
		removeGenerated(object, sent)
	}
	normalizeValue(object)
}

func normalizeService(spec, sent map[string]any) {
	if spec == nil {
		return
	}
	for _, name := range []string{"clusterIP", "clusterIPs", "healthCheckNodePort"} {
		if _, ok := spec[name]; ok && !reflect.DeepEqual(spec[name], sent[name]) {
			spec[name] = "allocated"
		}
	}
	given := map[string]bool{}
	sentPorts, _ := sent["ports"].([]any)
	for _, p := range sentPorts {
		if p, ok := p.(map[string]any); ok {
			given[fmt.Sprint(p["nodePort"])] = true
		}
	}
	ports, _ := spec["ports"].([]any)
	for _, p := range ports {
		if p, ok := p.(map[string]any); ok && p["nodePort"] != nil && !given[fmt.Sprint(p["nodePort"])] {
			p["nodePort"] = "allocated"
		}
	}
}

// generatedLabels are the labels with the UID of a Job.
var generatedLabels = []string{"controller-uid", "batch.kubernetes.io/controller-uid"}

// removeGenerated replaces the UID of a Job in its selector and labels.
func removeGenerated(object, sent map[string]any) {
	var visit func(now, before any)
	visit = func(now, before any) {
		object, ok := now.(map[string]any)
		if !ok {
			return
		}
		other, _ := before.(map[string]any)
		for name, value := range object {
			if slices.Contains(generatedLabels, name) && !reflect.DeepEqual(value, other[name]) {
				object[name] = "generated"
				continue
			}
			visit(value, other[name])
		}
	}
	visit(object, sent)
}

// normalizeValue replaces the current time and random names in a value, and returns it.
func normalizeValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			v[name] = normalizeValue(value)
		}
	case []any:
		for i, value := range v {
			v[i] = normalizeValue(value)
		}
	case string:
		if at, err := time.Parse(time.RFC3339Nano, v); err == nil && time.Since(at).Abs() < time.Hour {
			return "now"
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
