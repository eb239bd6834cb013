package content

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// keyed is a source whose files come from the keys of an object.
type keyed struct {
	name     string
	items    []corev1.KeyToPath // empty: every key under its own name
	defaults defaults
	optional bool
}

// object returns the object behind a reference, or none when it is missing
// and the source is optional.
func (b *builder) object(kind plan.RefKind, word string, src keyed) (*plan.Object, error) {
	obj, ok := b.in.Objects[plan.Ref{Kind: kind, Name: src.name}]
	switch {
	case !ok:
		return nil, &plan.Error{Err: fmt.Errorf("%s %q has not been read yet", word, src.name)}
	case obj.Missing && src.optional:
		return nil, nil
	case obj.Missing:
		return nil, notFound("%s %q not found", word, src.name)
	case obj.Err != "":
		return nil, &plan.Error{Err: fmt.Errorf("%s %q: %w", word, src.name, errors.New(obj.Err))}
	}
	return &obj, nil
}

// keys adds the files of one object.
func (b *builder) keys(data map[string][]byte, src keyed, missing string) error {
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
		if !ok && src.optional {
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
