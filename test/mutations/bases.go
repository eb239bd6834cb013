package mutations

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"berth/control/registry"
)

//go:embed bases
var files embed.FS

// kind is a served resource in one version.
type kind struct {
	schema.GroupVersionKind
	Resource   string
	Namespaced bool
	HasStatus  bool
	Type       reflect.Type
}

// name returns the kind with its group, as in reports. The version is part of it if a group has two.
func (k *kind) name() string {
	if k.Group == "autoscaling" {
		return k.Kind + "." + k.Version + "." + k.Group
	}
	return strings.TrimSuffix(k.Kind+"."+k.Group, ".")
}

// base is a valid object.
type base struct {
	kind   *kind
	id     string // the kind and the name
	object map[string]any
}

// kinds returns all kinds of the control server's table.
func kinds() (map[schema.GroupVersionKind]*kind, error) {
	out := map[schema.GroupVersionKind]*kind{}
	for _, k := range registry.All() {
		for _, gv := range append([]schema.GroupVersion{k.GroupVersion}, k.OtherVersions...) {
			gvk := gv.WithKind(k.Name())
			obj, err := scheme.Scheme.New(gvk)
			if err != nil {
				return nil, err
			}
			out[gvk] = &kind{GroupVersionKind: gvk, Resource: k.Resource, Namespaced: !k.ClusterScoped,
				HasStatus: k.Status, Type: reflect.TypeOf(obj).Elem()}
		}
	}
	return out, nil
}

// bases reads the valid objects. Each kind has at least one.
func bases() (out []*base, err error) {
	all, err := kinds()
	if err != nil {
		return nil, err
	}
	missing := maps.Clone(all)
	names, err := fs.Glob(files, "bases/*.yaml")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
			object, err := parseBase(document)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			gvk := schema.FromAPIVersionAndKind(stringField(object, "apiVersion"), stringField(object, "kind"))
			k := all[gvk]
			if k == nil {
				return nil, fmt.Errorf("%s: unknown kind %s", name, gvk)
			}
			delete(missing, gvk)
			metadata := object["metadata"].(map[string]any)
			if _, ok := metadata["namespace"]; !ok && k.Namespaced {
				metadata["namespace"] = namespace
			}
			out = append(out, &base{kind: k, id: k.name() + "/" + stringField(metadata, "name"), object: object})
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("no valid object of %v", slices.Collect(maps.Keys(missing)))
	}
	return out, nil
}

func parseBase(document []byte) (map[string]any, error) {
	text, err := yaml.YAMLToJSON(document)
	if err != nil {
		return nil, err
	}
	out, err := decode(text)
	if err != nil {
		return nil, err
	}
	if _, ok := out["metadata"].(map[string]any); !ok {
		return nil, fmt.Errorf("object without metadata: %s", text)
	}
	return out, nil
}

// decode decodes an object. Numbers keep all digits.
func decode(text []byte) (out map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return out, d.Decode(&out)
}

// stringField returns a string field.
func stringField(object map[string]any, name string) string {
	s, _ := object[name].(string)
	return s
}

// newName returns the name for a new object like a base.
func newName(name string) string {
	switch {
	case name == "192.0.2.77": // an IPAddress
		return "192.0.2.78"
	case strings.Contains(name, "base"):
		return strings.Replace(name, "base", "made", 1)
	}
	return name + "-made"
}

// copyJSON returns a deep copy.
func copyJSON(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			out[key] = copyJSON(value)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, value := range v {
			out[i] = copyJSON(value)
		}
		return out
	}
	return v
}
