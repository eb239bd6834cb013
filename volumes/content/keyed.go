package content

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// keyed is a source with the keys of a ConfigMap or Secret.
type keyed struct {
	ref      plan.Ref
	items    []corev1.KeyToPath // empty: all keys under their own names
	defaults defaults
	optional *bool
}

// object adds the files of an object: none if it is missing and the source is optional.
func (b *builder) object(src keyed) error {
	optional := src.optional != nil && *src.optional
	kind := strings.ToLower(string(src.ref.Kind))
	obj, ok := b.in.Objects[src.ref]
	switch {
	case !ok, obj.Pending:
		return &plan.Error{Err: fmt.Errorf("%s %q has not been read yet", kind, src.ref.Name)}
	case obj.Missing && !optional:
		return notFound("%s %q not found", kind, src.ref.Name)
	case obj.Err != "" && !obj.Missing:
		return &plan.Error{Err: fmt.Errorf("%s %q: %w", kind, src.ref.Name, errors.New(obj.Err))}
	}
	missing := "configmap references non-existent config key: %s"
	if src.ref.Kind == plan.Secret {
		missing = "references non-existent secret key: %s"
	}
	return b.keys(dataOf(obj), src, optional, missing)
}

// dataOf returns the data of an object by key. A Secret from a file may have stringData, which the
// API server would have merged.
func dataOf(obj plan.Object) map[string][]byte {
	data, texts := map[string][]byte{}, map[string]string{}
	if c := obj.ConfigMap; c != nil {
		data, texts = maps.Clone(c.BinaryData), c.Data
	}
	if s := obj.Secret; s != nil {
		data, texts = maps.Clone(s.Data), s.StringData
	}
	if data == nil {
		data = map[string][]byte{}
	}
	for k, v := range texts {
		data[k] = []byte(v)
	}
	return data
}

// keys adds the files of one object.
func (b *builder) keys(data map[string][]byte, src keyed, optional bool, missing string) error {
	if len(src.items) == 0 {
		for _, key := range slices.Sorted(maps.Keys(data)) {
			if err := b.add(key, src.defaults.file(data[key], nil, nil), false); err != nil {
				return err
			}
		}
		return nil
	}
	for _, item := range src.items {
		value, ok := data[item.Key]
		if !ok && optional {
			continue
		}
		if !ok {
			return notFound(missing, item.Key)
		}
		if err := b.add(item.Path, src.defaults.file(value, item.Mode, item.User), true); err != nil {
			return err
		}
	}
	return nil
}
