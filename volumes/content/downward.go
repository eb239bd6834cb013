package content

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// downward adds one file per item with the value of a pod field or a container resource.
func (b *builder) downward(items []corev1.DownwardAPIVolumeFile, d defaults) error {
	for _, item := range items {
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = b.in.Field(item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = b.in.Resource(item.ResourceFieldRef)
		default:
			return invalid("downwardAPI item %q has neither fieldRef nor resourceFieldRef", item.Path)
		}
		if err != nil {
			return &plan.Error{Kind: plan.Invalid, Err: fmt.Errorf("downwardAPI item %q: %w", item.Path, err)}
		}
		if err := b.add(item.Path, d.file([]byte(value), item.Mode, item.User), true); err != nil {
			return err
		}
	}
	return nil
}
